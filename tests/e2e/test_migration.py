"""Streams of real vLLM engines that are killed go on at the other replica, and nobody can tell from what was said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from tests.support.fleets import Fleet, session
from tests.support.listeners import CHAT, COMPLETIONS, Ask, Listener
from tests.support.lora import write_adapter
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app.prepare import prepare
from tuneplex.types import FleetSpec

pytestmark = pytest.mark.engine

FILE = """
name: moving
base:
  name: base
  source: {base}
adapters:
  ada: ./ada
  bob: ./bob
engine:
  python: {python}
pools:
  default:
    replicas: 2
    max_loras: 2
    max_model_len: {context}
    kv_cache: 256MiB
    engine_args:
      dtype: {dtype}
      enforce-eager: true
gateway:
  port: 0
"""
CONTEXT = 160
ROUNDS = 4
MORE = 8  # events that each stream has had before an engine is killed
NEARLY = 0.5  # by how much bfloat16 may misjudge a logarithm
FIRST = "default-0"
WRITTEN = "tuneplex_replica_generation_tokens"  # since the engine has started
MOVED = "tuneplex_migrations"

ENDLESS = {"temperature": 0, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}
ALWAYS = {"include_usage": True, "continuous_usage_stats": True}
IDS = {"return_token_ids": True}
TWO = {"n": 2, "temperature": 1, "seed": 5}
EMOJI = "🌙🚀🙂🌍 世界 🌙🚀🙂🌍 世界 🌙🚀🙂🌍 世界"


def chat(model: str, text: str, **more: object) -> Ask:
    """A chat of one message."""
    messages = [{"role": "user", "content": text}]
    return Ask(CHAT, {"model": model, "messages": messages, "max_tokens": 70, **ENDLESS, **more})


def plain(model: str, prompt: str, **more: object) -> Ask:
    """A plain completion."""
    return Ask(COMPLETIONS, {"model": model, "prompt": prompt, "max_tokens": 70, **ENDLESS, **more})


STOPPED = chat("ada", "Tell me a long story about the sea.", **USAGE)
EIGHT = (
    chat("bob", "Who lives in the sea?"),
    plain("ada", EMOJI, **USAGE),
    chat("bob", f"Say that again: {EMOJI}", **USAGE),
    chat("ada", "What does a baker do all day?", max_tokens=None),  # until the context is full
    plain("bob", "The river runs", stream_options=ALWAYS),
    chat("ada", "Count from one to a hundred.", **USAGE).by_client(),
    plain("bob", "One, two, three, four,", repetition_penalty=1.1, **USAGE, **IDS),
)
# A stream whose client sees the ids is not continued from within a character, so these say plain words.
COUNTED = [
    ask
    for model in ("ada", "bob")
    for ask in (
        chat(model, "Tell me a long story about the sea.", **USAGE, **IDS),
        chat(model, "What does a baker do all day?", **USAGE, **IDS),
        plain(model, "The river runs", **USAGE, **IDS),
        plain(model, "One, two, three, four,", **USAGE, **IDS),
    )
]


@pytest.fixture(scope="module")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine_python: Path, base_model: Path
) -> Iterator[Fleet]:
    """Two replicas with two adapters, computing in the type that the test names."""
    directory = tmp_path_factory.mktemp("moving")
    for seed, name in enumerate(("ada", "bob"), 1):
        write_adapter(directory / name, seed=seed)
    file = directory / "fleet.yaml"
    file.write_text(FILE.format(base=base_model, python=engine_python, dtype=request.param, context=CONTEXT))
    fleet = Fleet(directory / "state", prepare(file, SilentProgress()), patience_s=300)
    fleet.start()
    yield fleet
    fleet.end()


in_float32 = pytest.mark.parametrize("fleet", ["float32"], indirect=True, scope="module")
in_bfloat16 = pytest.mark.parametrize("fleet", ["bfloat16"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def whole(fleet: Fleet) -> list[Listener]:
    """The eight streams with no engine killed; the last one ends at a string of its own text."""
    fleet.ready()
    heard = [one.done() for one in [Listener(fleet, ask) for ask in (*EIGHT, STOPPED)]]
    stopped = Listener(fleet, STOPPED.but(stop=[some_of(heard.pop().text), "never said"])).done()
    for one in (*heard, stopped):
        one.is_whole()
    return [*heard, stopped]


def some_of(text: str) -> str:
    """A string that stands in the last part of this text, and nowhere before."""
    length = 12
    return next(
        text[at : at + length]
        for at in range(len(text) * 7 // 10, len(text) - length)
        if text.find(text[at : at + length]) == at
    )


def engine_process(fleet: Fleet, name: str) -> int:
    """A process of the first replica's engine: `APIServer` is the one that the gateway talks to."""
    pid = fleet.ready().replicas[0].pid
    assert pid is not None
    if name == "APIServer":
        return pid
    return next(one for one, words in fleet.processes().items() if name in words and session(one) == session(pid))


def all_go_on(fleet: Fleet, listeners: list[Listener]) -> None:
    """Wait until each has heard several more tokens."""
    wanted = [len(one.events) + MORE for one in listeners]
    fleet.wait_for(
        lambda: all(len(one.events) > most or one.error for one, most in zip(listeners, wanted, strict=True))
    )
    assert [one.ends for one in listeners] == [[]] * len(listeners)


def heard_with_a_kill(fleet: Fleet, asks: list[Ask], process: str) -> list[Listener]:
    """Ask for these streams, and kill the first replica's engine once all of them have begun."""
    pid, before = engine_process(fleet, process), fleet.counted(MOVED)
    listeners = [Listener(fleet, ask) for ask in asks]
    all_go_on(fleet, listeners)
    fleet.kill(pid)
    for one in listeners:
        one.done().is_whole()
    moved = fleet.counted(MOVED) - before
    assert 1 <= moved < len(asks)  # the second replica had some, too
    return listeners


# --- what clients see while nothing happens

HIDING: dict[str, Ask] = {
    "chat": chat("ada", "Who lives in the sea?", max_tokens=10),
    "chat-usage": chat("ada", "Who lives in the sea?", max_tokens=10, **USAGE),
    "chat-always": chat("ada", EMOJI, max_tokens=10, stream_options=ALWAYS),
    "chat-ids": chat("ada", EMOJI, max_tokens=10, **IDS),
    "chat-ids-usage": chat("base", "Who lives in the sea?", max_tokens=10, **USAGE, **IDS),
    "chat-n": chat("ada", "Who lives in the sea?", max_tokens=8, **TWO, **USAGE),
    "chat-logprobs": chat("ada", "Who lives in the sea?", max_tokens=8, logprobs=True, top_logprobs=2),
    "chat-end": chat("base", "Say only: yes", max_tokens=40, ignore_eos=False, **USAGE),
    "completions": plain("bob", EMOJI, max_tokens=10),
    "completions-usage": plain("bob", "The river runs", max_tokens=10, **USAGE),
    "completions-always": plain("bob", "The river runs", max_tokens=10, stream_options=ALWAYS),
    "completions-ids": plain("bob", EMOJI, max_tokens=10, **USAGE, **IDS),
    "completions-n": plain("bob", "The river runs", max_tokens=8, **TWO),
    "completions-logprobs": plain("bob", "The river runs", max_tokens=8, logprobs=2),
}


@pytest.fixture(scope="module")
def both(fleet: Fleet) -> dict[str, tuple[set[bytes], set[bytes]]]:
    """What each of these says while streams are continued, and while they are not, apart from the reply's id and time.

    A busy engine puts two tokens into one event now and then, so those that differ are asked for again.
    """
    fleet.ready()
    spec = fleet.spec
    staying = replace(spec, gateway=replace(spec.gateway, migrate=False), aliases={"witness": "base"})
    heard: dict[str, tuple[set[bytes], set[bytes]]] = {name: (set(), set()) for name in HIDING}
    for _ in range(ROUNDS):
        names = [name for name, (one, other) in heard.items() if not one & other]
        for number, wanted in enumerate((spec, staying)):
            apply(fleet, wanted)
            for name in names:
                heard[name][number].add(said(Listener(fleet, HIDING[name]).done().raw, name))
    apply(fleet, spec)
    return heard


def apply(fleet: Fleet, spec: FleetSpec) -> None:
    """Apply it, and wait until the gateway knows: it learns of aliases and settings at a time."""
    fleet.apply(spec)
    fleet.wait_for(lambda: ("witness" in models(fleet)) == bool(spec.aliases))


def said(raw: bytes, name: str) -> bytes:
    """What is the same whenever it is said; two replies at a time come in no certain order."""
    raw = re.sub(rb'"(id|created)":("[^"]*"|\d+)', rb'"\1":0', raw)
    return b"\n\n".join(sorted(raw.split(b"\n\n"))) if name.endswith("-n") else raw


def models(fleet: Fleet) -> set[str]:
    """What the gateway serves now."""
    with fleet.client() as client:
        return {model["id"] for model in client.get("/models").json()["data"]}


@in_float32
@pytest.mark.full
@pytest.mark.parametrize("name", HIDING)
def test_the_ids_are_taken_out_to_the_byte(both: dict[str, tuple[set[bytes], set[bytes]]], name: str) -> None:
    """With `migrate` the client gets the very bytes that it gets without."""
    migrating, staying = both[name]
    for raw in staying:
        assert b"data: [DONE]" in raw
        assert (b'"token_ids":[' in raw) == ("ids" in name)
    assert migrating & staying


# --- an engine is killed


@in_float32
@pytest.mark.full
@pytest.mark.parametrize("process", ["APIServer", "EngineCore"])
def test_in_float32_the_text_is_the_same(fleet: Fleet, whole: list[Listener], process: str) -> None:
    """All eight end as they do without the kill: text, reason, usage; and the engine that was killed serves again."""
    restarts = fleet.ready().replicas[0].restarts
    moved = heard_with_a_kill(fleet, [one.ask for one in whole], process)
    for one, true in zip(moved, whole, strict=True):
        assert one.text == true.text
        assert (one.ids, one.prompt_ids) == (true.ids, true.prompt_ids)
        assert one.ends == true.ends
        assert one.usages == true.usages
    fleet.ready(restarts=restarts + 1)
    asked = [Listener(fleet, ask) for ask in EIGHT[:2]]
    assert [one.done().text for one in asked] == [one.text for one in whole[:2]]
    fleet.wait_for(lambda: fleet.counted(WRITTEN, replica=FIRST))


@in_float32
@pytest.mark.full
def test_one_engine_is_killed_after_the_other(fleet: Fleet, whole: list[Listener]) -> None:
    """Streams move twice, wait for whichever engine comes back first, and end as they do without the kills."""
    first, second = (replica.pid for replica in fleet.ready().replicas)
    listeners = [Listener(fleet, one.ask) for one in whole]
    for pid in (first, second):
        all_go_on(fleet, listeners)
        assert pid is not None
        fleet.kill(pid)
    for one, true in zip(listeners, whole, strict=True):
        one.done().is_whole()
        assert (one.text, one.ids, one.ends, one.usages) == (true.text, true.ids, true.ends, true.usages)


@in_bfloat16
@pytest.mark.full
@pytest.mark.parametrize("process", ["EngineCore", "APIServer"])
def test_in_bfloat16_no_token_is_lost_or_doubled(fleet: Fleet, base_model: Path, process: str) -> None:
    """All have as many tokens as they should, they make the text, and each is what the engine says next."""
    fleet.ready()
    tokenizer = Tokenizer.from_file(str(base_model / "tokenizer.json"))
    for one in heard_with_a_kill(fleet, COUNTED, process):
        most = one.ask.body["max_tokens"]
        assert (len(one.ids), one.ends) == (most, ["length"])
        assert tokenizer.decode(one.ids) == one.text
        (prompt,) = one.prompt_ids
        (usage,) = one.usages
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), most)
        assert max(misjudged(fleet, one.ask.body["model"], prompt, one.ids)) < NEARLY


def misjudged(fleet: Fleet, model: str, prompt: list[int], ids: list[int]) -> list[float]:
    """By how much each token is less likely than the likeliest one, to an engine that reads all of them at once."""
    body = {"model": model, "prompt": [*prompt, *ids], "max_tokens": 1, "prompt_logprobs": 1}
    with fleet.client() as client:
        reply = client.post("/completions", json=body)
    assert reply.status_code == 200, reply.text
    told: list[dict[str, dict[str, Any]]] = reply.json()["choices"][0]["prompt_logprobs"][len(prompt) :]
    assert len(told) == len(ids)
    return [
        max(entry["logprob"] for entry in entries.values()) - entries[str(token_id)]["logprob"]
        for token_id, entries in zip(ids, told, strict=True)
    ]
