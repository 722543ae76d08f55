"""FakeEngine and the real vLLM keep the same contract, so that the fake cannot drift from what it stands for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.background import background
from tests.support.contract import CASES, CHAT, Case, answer, prepare, recorded
from tests.support.real_engine import RealEngine
from tuneplex.testing import FakeEngine, Script

PATIENCE_S = 20.0
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
    "vllm:prefix_cache_queries_total": {"engine", "model_name"},
    "vllm:prefix_cache_hits_total": {"engine", "model_name"},
    "vllm:engine_sleep_state": {"engine", "model_name", "sleep_state"},
    "vllm:request_success_total": {"engine", "model_name", "finished_reason"},
    "vllm:lora_requests_info": {"max_lora", "running_lora_adapters", "waiting_lora_adapters"},
}


@dataclass(frozen=True)
class Peer:
    """One of the two engines, and where its adapters lie."""

    client: httpx2.Client
    adapters: Path

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a series' values."""
        page = self.client.get("/metrics").text
        families = text_string_to_metric_families(page)
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

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
            yield Peer(client, engine.adapters)
        return
    slow = Script(between_chunks_s=0.002)
    fake = FakeEngine(api_key="k", tool_parser=True, default=slow, max_loras=2, max_lora_rank=16, max_model_len=1024)
    with background(fake), httpx2.Client(base_url=fake.url, headers={"authorization": "Bearer k"}) as client:
        adapters = tmp_path_factory.mktemp("adapters")
        prepare(client, adapters)
        yield Peer(client, adapters)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """What the real vLLM answered when the contract was written down."""
    return recorded()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers_keep_the_contract(peer: Peer, record: dict[str, Any], case: Case) -> None:
    """Status, headers, fields, types and words of every answer are those that are written down."""
    assert answer(peer.client, case, peer.adapters) == record[case.name]


def test_the_contract_has_no_dead_letters(record: dict[str, Any]) -> None:
    """Every recorded answer belongs to a case."""
    assert record.keys() == {case.name for case in CASES}


def test_metrics_have_the_names_and_labels_that_are_read(peer: Peer) -> None:
    """Each series that tuneplex reads exists, with the labels that it expects."""
    peer.client.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    found = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(peer.client.get("/metrics").text)
        for sample in family.samples
    }
    assert {name: found.get(name) for name in SERIES} == SERIES


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


def test_greedy_replies_repeat_and_adapters_differ(peer: Peer) -> None:
    """At temperature 0 a model repeats itself, and each adapter says something else."""

    def said(model: str) -> str:
        body = {"model": model, "prompt": "The river runs", "max_tokens": 12, "ignore_eos": True, "temperature": 0}
        return str(peer.client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    texts = [said(model) for model in ("base", "ada", "bob")]
    assert len(set(texts)) == 3
    assert [said("base"), said("ada")] == texts[:2]
