"""FakeEngine and the real vLLM keep the same contract, so that the fake cannot drift from what it stands for.

Both come in two kinds: without the plugin, and with it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from tests.support.background import background
from tests.support.contract import CASES, CHAT, PLUGIN_CASES, PREFIX, Case, answer, prepare, recorded, write_adapters
from tests.support.moves import DONE, Heard, raw
from tests.support.real_engine import RealEngine
from tests.support.thinned import thinned
from tuneplex.engines.continuing import asking_ids, continuable
from tuneplex.engines.journal import Journal
from tuneplex.engines.meters import ShownUsage, split_events
from tuneplex.engines.server import EngineModel
from tuneplex.engines.vllm.driver import read_metrics
from tuneplex.engines.wire import with_fields
from tuneplex.testing import FakeEngine, Script
from tuneplex.testing import Tokenizer as FakeTokenizer
from tuneplex.types import Route

PATIENCE_S = 20.0
FEWEST_LOOKS = 20
CONFIGURATION = "vllm:cache_config_info"
LONG = 900
# The series that tuneplex and its users read, with the labels that tell them apart.
SERIES = {
    "vllm:num_requests_running": {"engine", "model_name"},
    "vllm:num_requests_waiting": {"engine", "model_name"},
    "vllm:num_requests_waiting_by_reason": {"engine", "model_name", "reason"},
    "vllm:kv_cache_usage_perc": {"engine", "model_name"},
    "vllm:num_preemptions_total": {"engine", "model_name"},
    "vllm:prompt_tokens_total": {"engine", "model_name"},
    "vllm:generation_tokens_total": {"engine", "model_name"},
    "vllm:time_to_first_token_seconds_count": {"engine", "model_name"},
    "vllm:inter_token_latency_seconds_bucket": {"engine", "model_name", "le"},
    "vllm:request_queue_time_seconds_sum": {"engine", "model_name"},
    "vllm:request_queue_time_seconds_count": {"engine", "model_name"},
    "vllm:request_prefill_time_seconds_sum": {"engine", "model_name"},
    "vllm:request_decode_time_seconds_sum": {"engine", "model_name"},
    "vllm:prefix_cache_queries_total": {"engine", "model_name"},
    "vllm:prefix_cache_hits_total": {"engine", "model_name"},
    "vllm:engine_sleep_state": {"engine", "model_name", "sleep_state"},
    "vllm:request_success_total": {"engine", "model_name", "finished_reason"},
    CONFIGURATION: {"engine", "kv_cache_size_tokens", "num_gpu_blocks", "block_size"},
    "vllm:lora_requests_info": {"max_lora", "running_lora_adapters", "waiting_lora_adapters"},
}


_EMOJI = "Emoji: 🌙🚀🙂🌍 世界 Übung 🌙🚀🙂🌍 世界 Übung 🌙🚀"
STREAMED = {
    Route.CHAT: {"messages": [{"role": "user", "content": _EMOJI}], "temperature": 0, "max_tokens": 24},
    Route.COMPLETIONS: {"prompt": _EMOJI, "temperature": 0, "max_tokens": 24},
}
STREAMS: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stop": ["?!?!?!", "zz"]},
    {"return_token_ids": True, "ignore_eos": True},
    {"min_tokens": 20, "repetition_penalty": 1.2, "stop_token_ids": [300]},
    {"max_tokens": 2},
]
SAME = ("text", "roles", "ids", "finish", "usage")


class Listed(msgspec.Struct):
    """An engine's list of models, as the control reads it."""

    data: list[EngineModel]


@dataclass(frozen=True)
class Peer:
    """One of the two engines, where its adapters lie, and what makes text of its tokens."""

    client: httpx2.Client
    adapters: Path
    tokenizer: Tokenizer

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a series' values."""
        page = self.client.get("/metrics").text
        families = text_string_to_metric_families(page)
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def post(self, route: str, **body: object) -> httpx2.Response:
        """Call one of the plugin's routes."""
        return self.client.post(f"{PREFIX}/{route}", json=body)

    def done(self, route: str, **body: object) -> Any:  # noqa: ANN401 - JSON
        """Call a route that must succeed; its answer."""
        reply = self.post(route, **body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def refused(self, route: str, **body: object) -> tuple[int, str]:
        """Call a route that must refuse; status and code."""
        reply = self.post(route, **body)
        return reply.status_code, reply.json()["error"]["code"]

    def entries(self) -> dict[str, Any]:
        """The plugin's list of adapters, by name."""
        return {entry["name"]: entry for entry in self.client.get(f"{PREFIX}/adapters").json()["adapters"]}

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        deadline, looks = time.monotonic() + PATIENCE_S, 0
        while not condition():
            looks += 1
            # On a machine that stands still, one look can take longer than all of the patience.
            assert time.monotonic() < deadline or looks < FEWEST_LOOKS
            time.sleep(0.02)

    def events(self, route: Route, fields: dict[str, msgspec.Raw]) -> list[bytes]:
        """A whole stream, event by event."""
        headers = {"content-type": "application/json"}
        path = f"/v1/{route.value}"
        reply = self.client.post(path, content=with_fields(fields, model="base"), headers=headers)
        assert reply.status_code == 200, reply.text
        return split_events(reply.content)

    def long_stream(self, model: str) -> AbstractContextManager[httpx2.Response]:
        """A stream that would go on for long."""
        messages = [{"role": "user", "content": "Tell me a long story."}]
        body = {"model": model, "messages": messages, "max_tokens": LONG, "ignore_eos": True, "stream": True}
        return self.client.stream("POST", CHAT, json=body)


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The fake, and the real one, each with two adapters loaded."""
    if request.param == "real":
        engine: RealEngine = request.getfixturevalue("real_engine")
        with engine.client() as client:
            yield Peer(client, engine.adapters, _tokenizer(engine))
        return
    slow = Script(between_chunks_s=0.002)
    fake = FakeEngine(
        api_key="k", plugin=False, tool_parser=True, default=slow, max_loras=2, max_lora_rank=16, max_model_len=1024
    )
    with background(fake), httpx2.Client(base_url=fake.url, headers={"authorization": "Bearer k"}) as client:
        adapters = tmp_path_factory.mktemp("adapters")
        prepare(client, adapters)
        yield Peer(client, adapters, _tokenizer(None))


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def plugin_peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The fake, and the real one, each with the plugin and without adapters."""
    adapters = tmp_path_factory.mktemp("adapters")
    write_adapters(adapters)
    if request.param == "real":
        engine: RealEngine = request.getfixturevalue("plugin_engine")
        with engine.client() as client:
            yield Peer(client, adapters, _tokenizer(engine))
        return
    slow = Script(between_chunks_s=0.002)
    fake = FakeEngine(
        api_key="k", tool_parser=True, default=slow, max_loras=3, max_cpu_loras=6, max_lora_rank=128, max_model_len=1024
    )
    with background(fake), httpx2.Client(base_url=fake.url, headers={"authorization": "Bearer k"}) as client:
        yield Peer(client, adapters, _tokenizer(None))


def _tokenizer(engine: RealEngine | None) -> Tokenizer:
    return (
        Tokenizer.from_str(FakeTokenizer().as_json())
        if engine is None
        else Tokenizer.from_file(str(engine.root / "tokenizer.json"))
    )


@pytest.fixture
def loaded(plugin_peer: Peer) -> Iterator[Peer]:
    """The peer with four adapters for three slots; it is left without any."""
    names = ("ada", "bob", "cyd", "dee")
    for name in names:
        plugin_peer.done("load", name=name, path=str(plugin_peer.adapters / name))
    yield plugin_peer
    for name in names:
        plugin_peer.post("unload", name=name)
    assert plugin_peer.entries() == {}


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """What the real vLLM answered when the contract was written down."""
    return recorded()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers_keep_the_contract(peer: Peer, record: dict[str, Any], case: Case) -> None:
    """Status, headers, fields, types and words of every answer are those that are written down."""
    assert answer(peer.client, case, peer.adapters) == record[case.name]


@pytest.mark.parametrize("case", PLUGIN_CASES, ids=lambda case: case.name)
def test_answers_of_the_plugin_keep_the_contract(plugin_peer: Peer, record: dict[str, Any], case: Case) -> None:
    """Status, headers, fields, types and words of every answer of the plugin are those that are written down."""
    assert answer(plugin_peer.client, case, plugin_peer.adapters) == record[case.name]


def test_the_contract_has_no_dead_letters(record: dict[str, Any]) -> None:
    """Every recorded answer belongs to a case."""
    assert record.keys() == {case.name for case in (*CASES, *PLUGIN_CASES)}


def test_metrics_have_the_names_and_labels_that_are_read(peer: Peer) -> None:
    """Each series that tuneplex reads exists, with the labels that it expects."""
    peer.client.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    found = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(peer.client.get("/metrics").text)
        for sample in family.samples
    }
    exact = {name: labels for name, labels in SERIES.items() if name != CONFIGURATION}
    assert {name: found.get(name) for name in exact} == exact
    assert found[CONFIGURATION] >= SERIES[CONFIGURATION]  # vLLM shows all settings of its cache there


def test_the_context_is_told(peer: Peer) -> None:
    """The base's entry says how many tokens a request can have, and the metrics how many the KV cache holds."""
    cards = msgspec.json.decode(peer.client.get("/v1/models").content, type=Listed).data
    assert {card.id: card.context for card in cards} == {"base": 1024, "ada": None, "bob": None}
    held = read_metrics(peer.client.get("/metrics").text).kv_tokens
    assert held is not None
    assert held >= 1024


@pytest.mark.parametrize(
    "prompt, asked, status, answered",
    [
        (1023, 600, 200, 1),
        (1024, 1, 400, 0),
        (5, 1025, 400, 0),
        pytest.param(600, 600, 200, 424, marks=pytest.mark.full),
        pytest.param(5, 1024, 200, 1019, marks=pytest.mark.full),
    ],
)
def test_what_fits_the_context(peer: Peer, prompt: int, asked: int, status: int, answered: int) -> None:
    """The prompt and one token more must fit, and so must the answer asked for; both together are cut to what fits."""
    body = {"prompt": [5] * prompt, "max_tokens": asked, "ignore_eos": True}
    reply = peer.client.post("/v1/completions", json=body)
    assert reply.status_code == status
    if answered:
        assert reply.json()["usage"]["completion_tokens"] == answered


def test_tokens_are_counted(peer: Peer) -> None:
    """The counters of prompt and generated tokens grow by what the usage says."""
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = [peer.metric(name) for name in names]
    body = {"prompt": "The river runs", "max_tokens": 5, "ignore_eos": True}
    usage = peer.client.post("/v1/completions", json=body).json()["usage"]
    wanted = [before[0] + usage["prompt_tokens"], before[1] + usage["completion_tokens"]]
    peer.until(lambda: [peer.metric(name) for name in names] == wanted)


def test_a_client_that_leaves_ends_its_request(peer: Peer) -> None:
    """When the client closes the connection, the engine stops to work on the request."""
    before = peer.metric("vllm:generation_tokens_total")
    with peer.long_stream("base") as reply:
        pieces = reply.iter_raw()  # kept, because the connection goes with it
        next(pieces)
        peer.until(lambda: peer.metric("vllm:num_requests_running") == 1)
    peer.until(lambda: peer.metric("vllm:num_requests_running") == 0)
    assert peer.metric("vllm:generation_tokens_total") - before < LONG


def test_an_adapter_without_a_slot_waits(peer: Peer) -> None:
    """With two slots, a third adapter's request gets its headers, waits, and runs when a slot is free."""
    third = str(peer.adapters / "cyd")
    assert peer.client.post("/v1/load_lora_adapter", json={"lora_name": "cyd", "lora_path": third}).is_success
    with ExitStack() as streams:
        for name in ("ada", "bob"):
            streams.enter_context(peer.long_stream(name))
        peer.until(lambda: peer.metric("vllm:num_requests_running") == 2)
        waiting = streams.enter_context(peer.long_stream("cyd"))
        assert waiting.status_code == 200
        peer.until(lambda: peer.metric("vllm:num_requests_waiting_by_reason", reason="deferred") == 1)
    peer.until(lambda: peer.metric("vllm:num_requests_running") + peer.metric("vllm:num_requests_waiting") == 0)
    assert peer.client.post("/v1/unload_lora_adapter", json={"lora_name": "cyd"}).is_success


def test_streams_are_framed_alike(peer: Peer) -> None:
    """Each event is one `data:` line and an empty line, in UTF-8, and the last one is `[DONE]`."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "ignore_eos": True, "stream": True}
    raw = peer.client.post(CHAT, json=body).content
    assert re.fullmatch(rb"(data: \{[^\n]*\}\n\n)+data: \[DONE\]\n\n", raw)
    raw.decode()


def test_ids_and_text_agree(peer: Peer) -> None:
    """The token ids of a stream, given back as a prompt's end, are accepted and counted as they are."""
    body = {"prompt": "The river runs", "max_tokens": 6, "ignore_eos": True, "return_token_ids": True}
    choice = peer.client.post("/v1/completions", json=body).json()["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    again = peer.client.post("/v1/completions", json={"prompt": ids, "max_tokens": 1, "ignore_eos": True}).json()
    assert again["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
@pytest.mark.parametrize("more", thinned(STREAMS, 2), ids=str)
def test_token_ids_can_be_taken_out_without_a_trace(peer: Peer, route: Route, more: dict[str, Any]) -> None:
    """A stream that was asked for its ids has the events, byte for byte, of one that was not, once they are out."""
    fields = raw(**{**STREAMED[route], **more})
    terms = continuable(route, fields)
    assert terms is not None
    journal = Journal(terms, ShownUsage(), context=1024)
    plain, told = (peer.events(route, wanted) for wanted in (fields, asking_ids(fields)))
    assert told != plain or "return_token_ids" in more
    assert alike([journal.one(event) for event in told]) == alike(plain)
    assert journal.tokens == journal.used().completion


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
@pytest.mark.parametrize("more", STREAMS, ids=str)
@pytest.mark.parametrize("every", thinned([10, 7], 2))
def test_a_stream_goes_on_from_its_tokens(plugin_peer: Peer, route: Route, more: dict[str, Any], every: int) -> None:
    """Cut twice and continued as a completion of its tokens, a greedy stream in float32 is the same to a client."""
    assert_moves(plugin_peer, route, raw(**{**STREAMED[route], **more}), every=every)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("every", thinned([10, 3], 2))
def test_stop_strings_are_found_across_seams(
    plugin_peer: Peer,
    route: Route,
    include: bool,  # noqa: FBT001 - parametrized
    every: int,
) -> None:
    """Wherever a stream is cut, it ends at its stop string, also where that lies across the seam."""
    plain = raw(**STREAMED[route], ignore_eos=True)
    text = Heard(plugin_peer.events(route, plain)).summary()["text"]
    stops = [text[len(text) // 2 :][:10], "never said at all"]
    assert_moves(plugin_peer, route, {**plain, **raw(stop=stops, include_stop_str_in_output=include)}, every=every)


def assert_moves(peer: Peer, route: Route, fields: dict[str, msgspec.Raw], *, every: int) -> None:
    """A stream that is cut, after any so many events, and continued, and cut and continued again, is as it was."""
    terms = continuable(route, fields)
    assert terms is not None
    told = peer.events(route, asking_ids(fields))
    whole = Heard(peer.events(route, fields)).summary()
    seams = []
    for cut in range(1, len(told) - 1, every):
        journal = Journal(terms, ShownUsage(), context=1024)
        got = [journal.one(event) for event in told[:cut]]
        for length in (2, None):
            if (seam := journal.seam(peer.tokenizer)) is not None:
                got += map(journal.one, peer.events(Route.COMPLETIONS, journal.resume(seam))[:length])
                seams.append(seam)
        if not journal.continuable_now:  # a client that wants ids has no seam in a character
            found = Heard([*got, journal.closing()]).summary()
            assert found["envelopes"] == Heard([told[0], DONE]).summary()["envelopes"]
            assert {name: found[name] for name in SAME} == {name: whole[name] for name in SAME}
    assert seams


def alike(events: list[bytes]) -> tuple[str, set[bytes]]:
    """The text of a stream, and its events without what differs from reply to reply, or by how busy the engine is."""
    whole = b"".join(events)
    texts = re.findall(rb'"(?:content|text)":("(?:[^"\\]|\\.)*")', whole)
    text = "".join(map(json.loads, texts))
    bare = re.sub(
        rb'"(id|created|content|text|completion_tokens|total_tokens)":("(?:[^"\\]|\\.)*"|\d+)', rb'"\1":0', whole
    )
    return text, set(re.sub(rb'"token_ids":\[[\d,]*\]', b'"token_ids":[]', bare).split(b"\n\n"))


def test_greedy_replies_repeat_and_adapters_differ(peer: Peer) -> None:
    """At temperature 0 a model repeats itself, and each adapter says something else."""

    def said(model: str) -> str:
        body = {"model": model, "prompt": "The river runs", "max_tokens": 12, "ignore_eos": True, "temperature": 0}
        return str(peer.client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    texts = [said(model) for model in ("base", "ada", "bob")]
    assert len(set(texts)) == 3
    assert [said("base"), said("ada")] == texts[:2]


def test_every_route_of_the_plugin_asks_for_the_key(plugin_peer: Peer) -> None:
    """Without a key, or with a wrong one, each of them answers 401 and does nothing."""
    posts = ("load", "prefetch", "activate", "pin", "unpin", "unload", "sleep", "wake", "drain", "resume")
    routes = [("GET", "adapters"), *(("POST", route) for route in posts)]
    body = {"name": "ada", "path": str(plugin_peer.adapters / "ada")}
    for key in ("", "Bearer no"):
        headers = {"authorization": key}
        replies = [
            plugin_peer.client.request(method, f"{PREFIX}/{route}", headers=headers, json=body)
            for method, route in routes
        ]
        assert {reply.status_code for reply in replies} == {401}
    assert plugin_peer.entries() == {}


def test_a_request_brings_its_adapter_into_a_slot(loaded: Peer) -> None:
    """The least recently used adapter makes room for the one that a request needs, and the list tells both."""
    before = loaded.entries()
    assert {name: entry["tier"] for name, entry in before.items()} == {
        "ada": "host",
        "bob": "device",
        "cyd": "device",
        "dee": "device",
    }
    body = {"model": "ada", "prompt": "The river runs", "max_tokens": 2, "ignore_eos": True}
    began = time.time()
    assert loaded.client.post("/v1/completions", json=body).is_success
    loaded.until(lambda: loaded.entries()["ada"]["running"] == 0)
    after = loaded.entries()
    assert (after["ada"]["tier"], after["ada"]["slot"]) == ("device", before["bob"]["slot"])
    assert (after["bob"]["tier"], after["bob"]["slot"]) == ("host", None)
    assert began - 1 < after["ada"]["last_used"] < time.time() + 1


def test_who_is_in_use_is_not_unloaded(loaded: Peer) -> None:
    """While a reply is under way, unloading is refused or runs out of time, as asked, and the adapter stays."""
    with loaded.long_stream("dee"):
        loaded.until(lambda: loaded.entries()["dee"]["running"] == 1)
        assert loaded.refused("unload", name="dee", running="refuse") == (409, "adapter_busy")
        assert loaded.refused("unload", name="dee", timeout_s=0.1) == (504, "unload_timeout")
        assert loaded.entries()["dee"]["tier"] == "device"
    assert loaded.done("unload", name="dee") == {"name": "dee", "unloaded": True}
    assert "dee" not in loaded.entries()


def test_unloading_waits_for_the_last_request(loaded: Peer) -> None:
    """An adapter goes when its running reply is complete, not before."""
    body = {"model": "dee", "prompt": "The river runs", "max_tokens": 40, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(loaded.client.post, "/v1/completions", json=body)
        loaded.until(lambda: loaded.entries()["dee"]["running"] == 1)
        loaded.done("unload", name="dee")
        assert asked.result().json()["usage"]["completion_tokens"] == 40
    assert "dee" not in loaded.entries()


def test_who_waits_is_counted(loaded: Peer) -> None:
    """With three slots in use, a fourth adapter's request waits, and the list tells whose it is."""
    with ExitStack() as streams:
        for name in ("ada", "bob", "cyd", "dee"):
            streams.enter_context(loaded.long_stream(name))
            loaded.until(lambda name=name: loaded.entries()[name]["running"] + loaded.entries()[name]["waiting"] == 1)  # type: ignore[misc]
        loaded.until(lambda: sum(entry["running"] for entry in loaded.entries().values()) == 3)
        (waiting,) = (entry for entry in loaded.entries().values() if entry["waiting"])
        assert (waiting["name"], waiting["tier"]) == ("dee", "host")
    loaded.until(lambda: not any(entry["running"] + entry["waiting"] for entry in loaded.entries().values()))


def test_pins_yield_to_running_requests_and_come_back(loaded: Peer) -> None:
    """When running requests need all slots, a pinned adapter lends its own, and has it back at a later step."""
    for name in ("cyd", "dee"):
        loaded.done("pin", name=name)
    loaded.done("load", name="eve", path=str(loaded.adapters / "eve"), tier="host")
    with ExitStack() as streams:
        for name in ("ada", "bob", "eve"):
            streams.enter_context(loaded.long_stream(name))
        loaded.until(lambda: sum(entry["running"] for entry in loaded.entries().values()) == 3)
        entries = loaded.entries()
        assert {name for name, entry in entries.items() if entry["tier"] == "device"} == {"ada", "bob", "eve"}
        assert {name for name, entry in entries.items() if entry["pinned"]} == {"cyd", "dee"}
    loaded.until(lambda: loaded.metric("vllm:num_requests_running") == 0)
    body = {"prompt": "The river runs", "max_tokens": 4, "ignore_eos": True}
    assert loaded.client.post("/v1/completions", json=body).is_success
    loaded.until(lambda: all(loaded.entries()[name]["tier"] == "device" for name in ("cyd", "dee")))
    loaded.done("unload", name="eve")


def test_a_drained_engine_holds_what_comes(loaded: Peer) -> None:
    """A drain lets running replies end; what comes then waits, and is answered after resume."""
    body = {"model": "dee", "prompt": "The river runs", "max_tokens": 2, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        loaded.done("drain")
        late = pool.submit(loaded.client.post, "/v1/completions", json=body)
        with pytest.raises(TimeoutError):
            late.result(0.3)
        loaded.done("resume")
        assert late.result().is_success


def test_the_plugins_metrics_follow_its_list(loaded: Peer) -> None:
    """Slots, tiers and activations on the page are those of the list."""
    loaded.until(lambda: loaded.metric("tuneplex:adapter_slots_used") == 3)
    assert loaded.metric("tuneplex:adapter_slots") == 3
    tiers = {tier: loaded.metric("tuneplex:adapters", tier=tier) for tier in ("device", "host", "disk")}
    assert tiers == {"device": 3, "host": 1, "disk": 0}
    told = loaded.client.get(f"{PREFIX}/adapters").json()["activations"]
    assert loaded.metric("tuneplex:adapter_activation_seconds_count") == told["count"] >= 4
    assert loaded.metric("tuneplex:adapter_activation_seconds_sum") == pytest.approx(told["seconds"])
    assert loaded.metric("tuneplex:adapter_activation_bytes_total") == told["bytes"] > 0
