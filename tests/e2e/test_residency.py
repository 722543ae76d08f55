"""The plugin's residency routes on real vLLM, in float32: what they do, what they tell, and that both are the same.

Each test leaves the engine without adapters. The engine's own word is asked through its developer routes, as a witness;
nothing of the plugin needs them.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import httpx2
import pytest

from tests.support.lora import write_adapter
from tests.support.real_engine import RealEngine
from tests.support.residency import (
    LONG,
    PREFIX,
    RANK,
    Residency,
    replace_adapter,
    residency,
    value_count,
    write_big_adapter,
    write_unmatched_adapter,
)

SLOTS, HOST = 3, 6  # as in `PLUGIN_FLAGS`
WHILE = 24  # tokens of a reply that is long enough for things to happen meanwhile
ENDLESS = 400  # tokens of one that is still under way whatever else happens; nobody waits for its end
ROUTES = {
    ("get", "adapters"),
    *(("post", name) for name in ("load", "prefetch", "activate", "pin", "unpin", "unload")),
    *(("post", name) for name in ("sleep", "wake", "drain", "resume")),
}

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def opened(plugin_engine: RealEngine) -> Iterator[Residency]:
    """A client of the engine for all tests."""
    with residency(plugin_engine) as client:
        yield client


@pytest.fixture
def routes(opened: Residency) -> Iterator[Residency]:
    """The routes of an engine without adapters, which is left without adapters."""
    yield opened
    opened.clear()
    assert opened.engine_ids() == set()


@pytest.fixture(scope="module")
def truth(opened: Residency) -> dict[str, str]:
    """What each of eight adapters says alone, one loaded at a time."""
    said = {}
    for name in "abcdefgh":
        opened.load(name)
        said[name] = opened.say(name)
        opened.done("unload", name=name)
    assert len(set(said.values())) == len(said)
    return said


def agrees(listing: dict[str, Any]) -> None:
    """A list's totals are those of its entries, and no slot is given twice."""
    entries = listing["adapters"]
    tiers = Counter(entry["tier"] for entry in entries)
    slots = [entry["slot"] for entry in entries if entry["slot"] is not None]
    assert len(set(slots)) == len(slots) == tiers["device"] == listing["slots_used"] <= listing["slots"]
    assert all((entry["tier"] == "device") == (entry["slot"] is not None) for entry in entries)
    assert all(0 <= slot < listing["slots"] for slot in slots)
    assert tiers["device"] + tiers["host"] == listing["host_used"]


def test_each_route_asks_for_the_key(plugin_engine: RealEngine) -> None:
    """Without the key, or with a wrong one, every route that the server itself lists as the plugin's answers 401."""
    transport = httpx2.HTTPTransport(uds=str(plugin_engine.uds))
    with httpx2.Client(base_url="http://engine", transport=transport) as nobody:
        paths = nobody.get("/openapi.json").json()["paths"]
        found = {(method, path) for path, methods in paths.items() for method in methods if "tuneplex" in path}
        assert found >= {(method, f"{PREFIX}/{name}") for method, name in ROUTES}
        found |= {("post", "/v1/load_lora_adapter"), ("post", "/v1/unload_lora_adapter")}
        for method, path in found:
            for headers in ({}, {"authorization": "Bearer wrong"}):
                reply = nobody.request(method, path, headers=headers, json={"name": "a", "path": "/"})
                assert (path, reply.status_code) == (path, 401)


def test_the_list_tells_what_is_there(routes: Residency) -> None:
    """Name, id, path, rank, true bytes, place, use and totals are those of what was really loaded and asked."""
    start = time.time()
    first, second = routes.load("a"), routes.load("b", tier="host")
    routes.say("a")
    with routes.stream("a", tokens=WHILE) as stream:
        routes.until(lambda: routes.entry("a")["running"] == 1)
        assert routes.listing()["requests"]["running"] == 1
        stream.rest()
    routes.until(lambda: routes.entry("a")["running"] == 0)
    listing = routes.listing()
    agrees(listing)
    assert {"slots": SLOTS, "host_capacity": HOST, "max_rank": 128}.items() <= listing.items()
    assert (listing["plugin"], listing["vllm"]) == ("0.1.0", "0.32.0")
    assert listing["age_s"] >= 0
    entries = {entry["name"]: entry for entry in listing["adapters"]}
    assert entries.keys() == {"a", "b"}
    assert {entries["a"]["id"], entries["b"]["id"]} == routes.engine_ids() == {first["id"], second["id"]}
    for name in ("a", "b"):
        expected = {"path": str(routes.adapter(name)), "rank": RANK, "bytes": 4 * value_count(routes.adapter(name))}
        assert expected | {"pinned": False, "running": 0, "waiting": 0} == {
            key: entries[name][key] for key in (*expected, "pinned", "running", "waiting")
        }
    assert (entries["a"]["tier"], entries["b"]["tier"], entries["b"]["slot"]) == ("device", "host", None)
    assert start <= entries["a"]["last_used"] <= time.time()
    assert entries["a"]["activation_ms"] > 0
    assert entries["b"]["last_used"] is None
    assert entries["b"]["activation_ms"] is None


def test_the_totals_count(routes: Residency) -> None:
    """Token counters, KV cache and activations grow by what was asked, and Prometheus has the same numbers."""
    before = routes.listing()
    routes.load("a")
    routes.say("a", tokens=6)
    after = routes.listing()
    assert after["tokens"]["generation"] - before["tokens"]["generation"] == 6
    assert after["tokens"]["prompt"] > before["tokens"]["prompt"]
    assert after["activations"]["count"] - before["activations"]["count"] == 1
    assert after["activations"]["seconds"] > before["activations"]["seconds"]
    assert after["activations"]["bytes"] - before["activations"]["bytes"] == routes.entry("a")["bytes"]
    assert after["kv"]["tokens"] > 1000
    with routes.stream("a", LONG, tokens=WHILE) as stream:
        routes.until(lambda: routes.listing()["kv"]["use"] > 0)
        stream.rest()
    # A slot takes the largest rank in every linear module, so at least what the big adapter of that rank has.
    assert after["slot_bytes"] >= 4 * 39_075_840
    assert routes.metric("tuneplex:adapter_slots") == SLOTS
    assert routes.metric("tuneplex:adapter_slots_used") == 1
    assert routes.metric("tuneplex:adapters", tier="device") == 1
    assert routes.metric("tuneplex:adapter_activation_seconds_count") == after["activations"]["count"]
    assert routes.metric("tuneplex:adapter_activation_seconds_sum") == pytest.approx(after["activations"]["seconds"])
    assert routes.metric("tuneplex:adapter_activation_bytes_total") == after["activations"]["bytes"]


def test_prefetch_and_activate(routes: Residency, truth: dict[str, str]) -> None:
    """Prefetched weights are in host memory without a slot; activated ones have one, and a request pays nothing."""
    routes.load("a", tier="host")
    assert routes.entry("a") == routes.done("prefetch", name="a")
    assert (routes.entry("a")["tier"], routes.entry("a")["slot"]) == ("host", None)
    assert routes.listing()["slots_used"] == 0
    activated = routes.done("activate", name="a")
    assert activated["tier"] == "device"
    assert activated["slot"] in range(SLOTS)
    count = routes.listing()["activations"]["count"]
    assert routes.done("activate", name="a")["slot"] == activated["slot"]
    assert routes.say("a") == truth["a"]
    assert routes.listing()["activations"]["count"] == count


def test_what_was_evicted_can_be_prefetched(routes: Residency, truth: dict[str, str]) -> None:
    """An adapter that fell out of host memory is told as on disk; prefetch, or a request, brings it back."""
    for name in "abcdefgh":
        routes.load(name, tier="host")
    listing = routes.listing()
    agrees(listing)
    gone = [entry["name"] for entry in listing["adapters"] if entry["tier"] == "disk"]
    assert len(gone) == 8 - HOST
    assert routes.engine_ids() == {entry["id"] for entry in listing["adapters"] if entry["tier"] != "disk"}
    back = routes.done("prefetch", name=gone[0])
    assert back["tier"] == "host"
    assert back["id"] in routes.engine_ids()
    assert routes.say(gone[1]) == truth[gone[1]]
    assert routes.entry(gone[1])["tier"] == "device"
    agrees(routes.listing())


def test_more_adapters_than_slots(routes: Residency, truth: dict[str, str]) -> None:
    """Under load from eight adapters on three slots every answer is right, and the list is true at every look."""
    for name in truth:
        routes.load(name)
    over = Event()

    def watch() -> int:
        looks = 0
        while not over.wait(0.01):
            agrees(routes.listing())
            looks += 1
        return looks

    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(watch)
        try:
            said = routes.say_all(truth)
        finally:
            over.set()
    assert said == truth
    assert looks.result() > 10
    listing = routes.listing()
    assert listing["slots_used"] == SLOTS
    assert routes.engine_ids() == {entry["id"] for entry in listing["adapters"] if entry["tier"] != "disk"}


def test_requests_for_the_waiting_are_counted(routes: Residency) -> None:
    """Who has no slot while all slots are in use waits, and the list says so, adapter by adapter."""
    for name in "abcd":
        routes.load(name)
    with ThreadPoolExecutor(4) as pool:
        asked = {name: pool.submit(routes.say, name, "The river runs", WHILE) for name in "abcd"}

        def busy() -> bool:
            entries = routes.entries()
            running = [name for name in asked if entries[name]["running"]]
            waiting = [name for name in asked if entries[name]["waiting"]]
            return len(running) == SLOTS and len(waiting) == 1 and set(running).isdisjoint(waiting)

        routes.until(busy)
    assert all(future.result() for future in asked.values())


def test_the_last_slot_is_not_pinned(routes: Residency, truth: dict[str, str]) -> None:
    """All slots but one can be pinned; pinning the last is refused, and others are still served through it."""
    for name in "abcd":
        routes.load(name)
    for name in "ab":
        assert routes.done("pin", name=name)["pinned"]
    status, code, message = routes.refused("pin", name="c")
    assert (status, code) == (409, "last_slot")
    assert str(SLOTS) in message
    assert routes.done("pin", name="a")["pinned"]
    assert [entry["name"] for entry in routes.listing()["adapters"] if entry["pinned"]] == ["a", "b"]
    assert {name: routes.say(name) for name in "cd"} == {name: truth[name] for name in "cd"}
    assert all(routes.entry(name)["tier"] == "device" for name in "ab")
    assert not routes.done("unpin", name="a")["pinned"]
    assert routes.done("pin", name="c")["pinned"]


def test_pins_and_more_adapters_at_once_than_other_slots(routes: Residency, truth: dict[str, str]) -> None:
    """With two of three slots pinned, six other adapters at once are answered right, and the pins are kept."""
    for name in truth:
        routes.load(name, tier="host")
    for name in "ab":
        routes.done("pin", name=name)
    assert routes.say_all("cdefgh") == {name: truth[name] for name in "cdefgh"}
    agrees(routes.listing())
    assert all(routes.entry(name)["pinned"] for name in "ab")
    assert {name: routes.say(name) for name in "ab"} == {name: truth[name] for name in "ab"}
    routes.until(lambda: all(routes.entry(name)["tier"] == "device" for name in "ab"))


def test_unload_refuses_while_it_is_used(routes: Residency, truth: dict[str, str]) -> None:
    """An adapter with running requests is not unloaded when asked to refuse, and goes on as if nobody had asked."""
    routes.load("a")
    with routes.stream("a", tokens=ENDLESS) as stream:
        assert routes.refused("unload", name="a", running="refuse")[:2] == (409, "adapter_busy")
        assert stream.goes_on_with(truth["a"])
        assert routes.say("a") == truth["a"]


def test_unload_that_runs_out_of_time_leaves_everything(routes: Residency, truth: dict[str, str]) -> None:
    """When running requests do not end in time, the answer is 504 and the adapter is still served."""
    routes.load("a")
    with routes.stream("a", tokens=ENDLESS) as stream:
        assert routes.refused("unload", name="a", running="wait", timeout_s=0.2)[:2] == (504, "unload_timeout")
        assert routes.entry("a")["tier"] == "device"
        assert stream.goes_on_with(truth["a"])
        assert routes.say("a") == truth["a"]


def test_unload_waits_and_then_all_is_gone(routes: Residency) -> None:
    """A running request ends whole; then name, engine copy, host copy and slot are gone."""
    entry = routes.load("a")
    routes.load("b")
    alone = routes.say("a", tokens=WHILE)
    with ThreadPoolExecutor(1) as pool, routes.stream("a", tokens=WHILE) as stream:
        unloaded = pool.submit(routes.done, "unload", name="a")
        assert stream.rest() == alone
        assert stream.finish == "length"
        assert unloaded.result() == {"name": "a", "unloaded": True}
    assert entry["id"] not in routes.engine_ids()
    listing = routes.listing()
    agrees(listing)
    assert [entry["name"] for entry in listing["adapters"]] == ["b"]
    assert (listing["slots_used"], listing["host_used"]) == (1, 1)
    assert "a" not in {model["id"] for model in routes.client.get("/v1/models").json()["data"]}
    reply = routes.client.post("/v1/completions", json={"model": "a", "prompt": "x"})
    assert reply.status_code == 404


@pytest.mark.parametrize("ranks, times", [((64, 16), 20), pytest.param((128, 128), 40, marks=pytest.mark.full)])
def test_what_is_unloaded_leaves_the_memory(
    routes: Residency, tmp_path: Path, ranks: tuple[int, int], times: int
) -> None:
    """Three large adapters are seen in the processes' memory and gone from it; doing it often does not grow it."""
    big = write_big_adapter(tmp_path / "big", rank=ranks[0])
    small = write_big_adapter(tmp_path / "small", rank=ranks[1])
    size = 4 * value_count(big)

    def round_trip(path: Path, *names: str) -> int:
        for name in names:
            routes.load(name, path)
        peak = routes.memory()
        for name in names:
            routes.done("unload", name=name)
        return peak

    round_trip(big, "warm")  # what torch and the slots take once is taken
    before = routes.memory()
    assert round_trip(big, "x", "y", "z") - before > 2.5 * size
    assert routes.memory() - before < 0.5 * size
    for number in range(times):
        round_trip(small, f"again{number}")  # kept, they would be five large ones or more
    assert routes.memory() - before < 0.5 * size


def test_replaced_weights_never_meet_the_old_cache(routes: Residency, tmp_path: Path) -> None:
    """Under an old name and path, new weights say what they say under a fresh name, long shared prefix or not."""
    old, new = write_adapter(tmp_path / "old", seed=1), write_adapter(tmp_path / "new", seed=2)
    place = Path(shutil.copytree(old, tmp_path / "place"))
    first = routes.load("doc", place)
    said = routes.say("doc", LONG)
    hits = routes.metric("vllm:prefix_cache_hits_total")
    assert routes.say("doc", LONG) == said
    assert routes.metric("vllm:prefix_cache_hits_total") > hits  # or there would be nothing to be stale
    assert routes.load("doc", place)["id"] == first["id"]
    replace_adapter(place, new)
    assert routes.refused("load", name="doc", path=str(place))[:2] == (409, "adapter_exists")
    assert routes.refused("load", name="doc", path=str(new))[:2] == (409, "adapter_exists")
    assert routes.say("doc", LONG) == said
    second = routes.load("doc", place, replace=True)
    assert second["path"] == str(place)
    changed = routes.say("doc", LONG)
    routes.load("fresh", new)
    assert changed == routes.say("fresh", LONG) != said
    assert routes.say("doc", LONG) == changed
    assert routes.engine_ids() == {second["id"], routes.entry("fresh")["id"]}
    # And back again, by another way: the old content may have its old cache, never the new one's.
    routes.done("unload", name="doc")
    replace_adapter(place, old)
    routes.load("doc", place)
    assert routes.say("doc", LONG) == said


def test_files_that_changed_on_disk_are_not_taken_for_the_old_ones(
    routes: Residency, truth: dict[str, str], tmp_path: Path
) -> None:
    """An evicted adapter whose files were changed meanwhile is an error to load again, never a mix of old and new."""
    old, new = write_adapter(tmp_path / "old", seed=1), write_adapter(tmp_path / "new", seed=2)
    place = Path(shutil.copytree(old, tmp_path / "place"))
    routes.load("doc", place)
    for name in "abcdef":
        routes.load(name)
    assert routes.entry("doc")["tier"] == "disk"
    replace_adapter(place, new)
    assert routes.refused("prefetch", name="doc")[1] == "adapter_invalid"
    reply = routes.client.post("/v1/completions", json={"model": "doc", "prompt": "The river runs", "max_tokens": 4})
    assert reply.status_code >= 400
    assert routes.say("a") == truth["a"]
    routes.load("doc", place, replace="doc" in routes.entries())
    routes.load("fresh", new)
    assert routes.say("doc") == routes.say("fresh")


def test_running_requests_end_on_the_weights_they_began_with(routes: Residency) -> None:
    """While a name's weights are replaced, running requests go on with the old ones, and new ones use the new."""
    old, new = routes.adapter("a"), routes.adapter("b")
    first = routes.load("doc", old)
    routes.load("other", new, tier="host")
    before, after = routes.say("doc", tokens=WHILE), routes.say("other", tokens=WHILE)
    assert before != after
    with routes.stream("doc", tokens=WHILE) as stream:
        second = routes.load("doc", new, replace=True)
        assert second["id"] != first["id"]
        with ThreadPoolExecutor(1) as pool:
            newer = pool.submit(routes.say, "doc", tokens=WHILE)
            assert stream.finish is None
            assert stream.rest() == before
            assert newer.result() == after
    routes.until(lambda: first["id"] not in routes.engine_ids())
    agrees(routes.listing())
    assert routes.entries().keys() == {"doc", "other"}


def test_bad_adapters_are_refused(routes: Residency, tmp_path: Path) -> None:
    """A wrong path, weights that fit nowhere, too large a rank and an unknown name are errors that leave no trace."""
    unmatched = write_unmatched_adapter(tmp_path / "unmatched")
    status, code, message = routes.refused("load", name="bad", path=str(unmatched))
    assert (status, code) == (400, "adapter_matches_nothing")
    assert "decoder.blocks.0.self_attn.v_proj" in message
    assert routes.refused("load", name="bad", path=str(tmp_path / "nowhere"))[:2] == (404, "adapter_not_found")
    large = write_adapter(tmp_path / "large", rank=200)
    status, code, message = routes.refused("load", name="bad", path=str(large))
    assert (status, code) == (400, "adapter_invalid")
    assert "200" in message
    for route in ("prefetch", "activate", "pin", "unpin", "unload"):
        assert routes.refused(route, name="bad")[:2] == (404, "adapter_not_found")
    assert routes.entries() == {}
    assert routes.engine_ids() == set()
    assert routes.client.get("/health").is_success


@pytest.mark.parametrize(
    "route, body",
    [
        ("load", {"name": "a"}),
        ("load", {"name": "", "path": "/x"}),
        ("load", {"name": "a", "path": "/x", "tier": "moon"}),
        ("load", {"name": "base", "path": "/x"}),
        ("load", {"name": "a", "path": "/x", "what": 1}),
        ("unload", {"name": "a", "running": "kill"}),
        ("unload", {"name": "a", "timeout_s": -1}),
        ("pin", {}),
        ("drain", {"timeout_s": "long"}),
    ],
    ids=str,
)
def test_bodies_that_mean_nothing_are_refused(routes: Residency, route: str, body: dict[str, object]) -> None:
    """A missing, unknown or senseless field is a 400 in OpenAI's shape."""
    assert routes.refused(route, **body)[0] == 400


def test_sleep_is_not_pretended(routes: Residency) -> None:
    """On the CPU nothing can be put to sleep, and the routes say so instead of answering 200."""
    for route in ("sleep", "wake"):
        status, code, message = routes.refused(route)
        assert (status, code) == (501, "not_supported")
        assert "cpu" in message.lower()
    assert routes.say("base")


def test_drain_and_resume(routes: Residency) -> None:
    """A drain ends when the running requests have ended whole; new ones wait until the engine is resumed."""
    routes.load("a")
    alone = routes.say("a", tokens=WHILE)
    with ThreadPoolExecutor(2) as pool:
        with routes.stream("a", tokens=WHILE) as stream:
            drained: Future[dict[str, Any]] = pool.submit(routes.done, "drain")
            assert stream.rest() == alone
        drained.result()
        late = pool.submit(routes.say, "a", "The river runs", WHILE)
        time.sleep(0.5)
        assert not late.done()
        routes.done("resume")
        assert late.result() == alone


def test_a_drain_that_runs_out_of_time_holds_nobody(routes: Residency) -> None:
    """When running requests do not end in time, the answer is 504 and everything goes on as before."""
    alone = routes.say("base")
    with routes.stream("base", tokens=ENDLESS) as stream:
        assert routes.refused("drain", timeout_s=0.2)[:2] == (504, "drain_timeout")
        assert routes.say("base") == alone
        assert stream.goes_on_with(alone)


def test_vllms_own_routes_unload_for_real(routes: Residency, tmp_path: Path) -> None:
    """The routes that vLLM has itself keep their bodies and answers, and what they unload is gone from the engine."""
    path = str(routes.adapter("a"))

    def post(route: str, **body: object) -> httpx2.Response:
        return routes.client.post(f"/v1/{route}_lora_adapter", json=body)

    loaded = post("load", lora_name="a", lora_path=path)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'a' added successfully.")
    assert post("load", lora_name="a", lora_path=path).status_code == 400
    assert {routes.entry("a")["id"]} == routes.engine_ids()
    unmatched = write_unmatched_adapter(tmp_path / "unmatched")
    reply = post("load", lora_name="bad", lora_path=str(unmatched))
    assert reply.status_code == 400
    assert "decoder.blocks.0" in reply.text
    unloaded = post("unload", lora_name="a")
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'a' removed successfully.")
    assert routes.engine_ids() == set()
    assert post("unload", lora_name="a").status_code == 404


@pytest.mark.full
def test_a_reload_in_place_is_a_replacement(routes: Residency, tmp_path: Path) -> None:
    """The `load_inplace` of vLLM's own route, from the same path, never serves the old weights' cache."""
    old, new = write_adapter(tmp_path / "old", seed=1), write_adapter(tmp_path / "new", seed=2)
    place = Path(shutil.copytree(old, tmp_path / "place"))
    body = {"lora_name": "doc", "lora_path": str(place)}
    routes.client.post("/v1/load_lora_adapter", json=body).raise_for_status()
    said = routes.say("doc", LONG)
    replace_adapter(place, new)
    routes.client.post("/v1/load_lora_adapter", json=body | {"load_inplace": True}).raise_for_status()
    routes.load("fresh", new)
    assert routes.say("doc", LONG) == routes.say("fresh", LONG) != said


@pytest.mark.full
def test_anything_at_any_time(routes: Residency, truth: dict[str, str]) -> None:
    """While adapters are moved, pinned and unloaded at random, each answer is right or a 404, and the list is true."""
    chance = Random(0)  # noqa: S311 - the same every time
    over = Event()
    outcomes: Counter[int] = Counter()

    def ask(seed: int) -> None:
        mine = Random(seed)  # noqa: S311 - the same
        while not over.is_set():
            name = mine.choice([*truth])
            body = {"model": name, "prompt": "The river runs", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            reply = routes.client.post("/v1/completions", json=body)
            outcomes[reply.status_code] += 1
            assert reply.status_code == 404 or reply.json()["choices"][0]["text"] == truth[name]

    def act() -> None:
        name = chance.choice([*truth])
        route = chance.choice(["load", "prefetch", "activate", "pin", "pin", "unpin", "unload"])
        more = {"path": str(routes.adapter(name)), "tier": chance.choice(["host", "device"])} if route == "load" else {}
        reply = routes.post(route, name=name, **more)
        code = "" if reply.is_success else reply.json()["error"]["code"]
        assert code in {"", "adapter_not_found", "last_slot", "slots_busy"}, reply.text
        agrees(routes.listing())

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, seed) for seed in range(4)]
        try:
            for _ in range(200):
                act()
        finally:
            over.set()
    for asked in asking:
        asked.result()
    assert outcomes.keys() == {200, 404}
    assert outcomes[200] > 20


def test_without_its_name_the_routes_are_absent(real_engine: RealEngine) -> None:
    """An engine whose VLLM_PLUGINS does not name the plugin has none of its routes and serves as ever."""
    with residency(real_engine) as plain:
        assert plain.client.get(f"{PREFIX}/adapters").status_code == 404
        assert plain.post("unload", name="ada").status_code == 404
        assert plain.say("ada") != plain.say("base")
