"""The contract between FakeEngine and vLLM: the same requests, and what is compared of the answers.

`contract.json` holds what the real vLLM answered; `record` writes it anew (`python -m tests.support.contract`). `CASES`
are for a vLLM without the plugin, `PLUGIN_CASES` for one with it; each of the two is a story, whose order matters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2

from tests.support.lora import write_adapter
from tests.support.real_engine import PLUGIN_ENV, PLUGIN_FLAGS, real_engine
from tests.support.residency import write_unmatched_adapter

__all__ = ["CASES", "PLUGIN_CASES", "PREFIX", "Case", "answer", "prepare", "recorded", "write_adapters"]

RECORD = Path(__file__).with_name("contract.json")
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PREFIX = "/v1/tuneplex"
# Fields whose value is part of the contract, not only its type.
LITERAL = {"code", "finish_reason", "message", "object", "owned_by", "param", "parent", "role", "status", "type"}
LITERAL_OF_PLUGIN = {"host_capacity", "host_used", "max_rank", "name", "pinned", "rank", "running", "slot", "slots"}
LITERAL_OF_PLUGIN |= {"slots_used", "tier", "unloaded", "waiting"}
HEADERS = ("allow", "content-type", "transfer-encoding")


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: Under which its answer is recorded.
        path: Where it goes.
        body: JSON, or bytes as they are.
        method: Of the request.
        headers: Besides the key.
        wordless: The body is not compared, only whether there is one.
    """

    name: str
    path: str
    body: Mapping[str, Any] | bytes | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    wordless: bool = False


def _chat(name: str, **fields: object) -> Case:
    content = "word " * 3000 if fields.pop("long", False) else "What is the weather in Rome?"
    body = {"model": "base", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
    return Case(f"chat: {name}", CHAT, {key: value for key, value in body.items() if value is not ...})


def _completion(name: str, **fields: object) -> Case:
    body = {"model": "base", "prompt": "The river runs", "temperature": 0, "max_tokens": 4, **fields}
    return Case(f"completion: {name}", COMPLETIONS, {key: value for key, value in body.items() if value is not ...})


def _response(name: str, **fields: object) -> Case:
    body = {"model": "base", "input": "What is the weather in Rome?", "temperature": 0, **fields}
    return Case(f"response: {name}", RESPONSES, {key: value for key, value in body.items() if value is not ...})


def _adapter(name: str, path: str, **fields: object) -> Case:
    return Case(f"adapter: {name}", path, fields)


def _plugin(case: str, route: str, /, **fields: object) -> Case:
    return Case(f"plugin: {case}", f"{PREFIX}/{route}", fields)


def _load(name: str, adapter: str, path: str, **fields: object) -> Case:
    return _plugin(name, "load", name=adapter, path=f"{{adapters}}/{path}", **fields)


def _list(name: str) -> Case:
    return Case(f"plugin: {name}", f"{PREFIX}/adapters", method="GET")


_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": _CITY, "strict": True}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_NAMED = {"type": "function", "function": {"name": "weather"}}
_PLAIN_TOOLS = [{"type": "function", **_FUNCTION}]
_PLAIN_NAMED = {"type": "function", "name": "weather"}
_FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": _CITY}}
_EXACTLY = {"max_tokens": 4, "ignore_eos": True}
_BRIEFLY = [{"role": "user", "content": "Say only: yes"}]
_LUCK = {"temperature": 1, "seed": 3}
_USAGE = {"include_usage": True, "continuous_usage_stats": True}

_CHATS = (
    _chat("base", **_EXACTLY),
    _chat("adapter", model="ada", **_EXACTLY),
    _chat("no model", model=..., **_EXACTLY),
    _chat("until its end", messages=_BRIEFLY, max_tokens=300, return_token_ids=True),
    _chat("stream", stream=True, **_EXACTLY),
    _chat("stream of an adapter", model="ada", stream=True, **_EXACTLY),
    _chat("stream until its end", messages=_BRIEFLY, stream=True, max_tokens=300),
    _chat("stream with ids and usage", stream=True, return_token_ids=True, stream_options=_USAGE, **_EXACTLY),
    _chat("stream with one usage", stream=True, stream_options={"include_usage": True}, **_EXACTLY),
    _chat("choices", n=2, return_token_ids=True, **_LUCK, **_EXACTLY),
    _chat("choices with log-probabilities", n=2, logprobs=True, top_logprobs=2, **_LUCK, **_EXACTLY),
    _chat("log-probabilities alone", logprobs=True, **_EXACTLY),
    _chat("stream of log-probabilities", n=2, **_LUCK, stream=True, logprobs=True, top_logprobs=1, **_EXACTLY),
    _chat("stop", max_tokens=300, ignore_eos=True, stop=["e"], return_token_ids=True),
    _chat("stream to a stop", stream=True, max_tokens=300, ignore_eos=True, stop="e"),
    _chat("schema", max_tokens=200, response_format=_FORM),
    _chat("named tool", max_tokens=300, tools=_TOOLS, tool_choice=_NAMED),
    _chat("required tool", max_tokens=300, tools=_TOOLS, tool_choice="required"),
    _chat("stream of a named tool", stream=True, max_tokens=300, tools=_TOOLS, tool_choice=_NAMED),
    _chat("stream of a required tool", stream=True, max_tokens=300, tools=_TOOLS, tool_choice="required"),
    _chat("no tool", tools=_TOOLS, tool_choice="none", **_EXACTLY),
    _chat("max_completion_tokens", max_completion_tokens=2, ignore_eos=True),
    _chat("unknown field", what_is_this=3, **_EXACTLY),
    _chat("content in parts", messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}], **_EXACTLY),
    _chat("seed", **_LUCK, **_EXACTLY),
)
_WRONG_CHATS = (
    _chat("unknown model", model="nobody"),
    _chat("unknown model, stream", model="nobody", stream=True),
    _chat("messages missing", messages=...),
    _chat("messages of the wrong type", messages="hi"),
    _chat("messages empty", messages=[]),
    _chat("temperature of the wrong type", temperature="hot"),
    _chat("temperature negative", temperature=-1),
    _chat("n too small", n=0),
    _chat("n at temperature zero", n=2),
    _chat("max_tokens zero", max_tokens=0),
    _chat("max_tokens too large", max_tokens=5000),
    _chat("prompt too long", long=True),
    _chat("stream_options without stream", stream_options={"include_usage": True}),
    _chat("top_logprobs without logprobs", top_logprobs=2),
    _chat("top_logprobs too many", logprobs=True, top_logprobs=50),
    _chat("schema missing", response_format={"type": "json_schema"}),
    _chat("unknown tool", tools=_TOOLS, tool_choice={"type": "function", "function": {"name": "no"}}),
    _chat("tool choice without tools", tool_choice="auto"),
    _chat("tools empty", tools=[]),
    Case("chat: half of a JSON object", CHAT, b'{"model": '),
    Case("chat: not JSON", CHAT, b"hello"),
    Case("chat: nothing", CHAT, b""),
    Case("chat: a list", CHAT, b"[]"),
    Case("chat: not UTF-8", CHAT, b'{"model": "\xff"}'),
    Case("chat: not said to be JSON", CHAT, b"{}", headers={"content-type": "text/plain"}),
)
_COMPLETIONS = (
    _completion("base", ignore_eos=True),
    _completion("adapter", model="ada", ignore_eos=True),
    _completion("token ids", prompt=[5, 6, 7], return_token_ids=True, ignore_eos=True),
    _completion("several prompts", prompt=["a", "b"], ignore_eos=True),
    _completion("log-probabilities", logprobs=1, ignore_eos=True),
    _completion("stream", stream=True, ignore_eos=True),
    _completion("stream of several", prompt=["a", "b"], n=2, **_LUCK, stream=True, ignore_eos=True),
    _completion(
        "stream with everything", stream=True, logprobs=1, return_token_ids=True, stream_options=_USAGE, ignore_eos=True
    ),
    _completion("echo", echo=True, ignore_eos=True),
    _completion("default length", max_tokens=..., ignore_eos=True),
    _completion("unknown model", model="nobody"),
    _completion("prompt missing", prompt=...),
    _completion("prompt too long", prompt=[5] * 3000),
    _completion("unknown token", prompt=[5_000_000]),
    _completion("prompt empty", prompt=[]),
    _completion("prompt in it empty", prompt=[[]]),
)
_RESPONSES = (
    _response("base", max_output_tokens=4, ignore_eos=True),
    _response("adapter", model="ada", max_output_tokens=4, ignore_eos=True),
    _response("until its end", input="Say only: yes", max_output_tokens=300),
    _response(
        "with all that is echoed",
        max_output_tokens=4,
        ignore_eos=True,
        input=[{"role": "user", "content": "hi"}],
        instructions="Be kind.",
        metadata={"a": "b"},
        user="u",
        store=False,
    ),
    _response("stream", max_output_tokens=4, ignore_eos=True, stream=True),
    _response("schema", max_output_tokens=200, text={"format": {"type": "json_schema", "name": "x", "schema": _CITY}}),
    _response("tool", max_output_tokens=300, tools=_PLAIN_TOOLS, tool_choice="required"),
    _response("stream of a tool", max_output_tokens=300, tools=_PLAIN_TOOLS, tool_choice="required", stream=True),
    _response("named tool", max_output_tokens=300, tools=_PLAIN_TOOLS, tool_choice=_PLAIN_NAMED),
    _response("required tool without tools", tool_choice="required"),
    _response("unknown tool", tools=_PLAIN_TOOLS, tool_choice={"type": "function", "name": "no"}),
    _response("earlier response", previous_response_id="resp_abc"),
    _response("unknown model", model="nobody"),
    # How many fields the request had is told wrong by vLLM, which adds one before it counts.
    replace(_response("input missing", input=...), wordless=True),
    _response("input too long", input="word " * 3000),
)
_ADAPTERS = (
    _adapter("nothing said", LOAD),
    _adapter("empty names", LOAD, lora_name="", lora_path=""),
    _adapter("path that is not there", LOAD, lora_name="gone", lora_path="{adapters}/gone"),
    _adapter("directory without an adapter", LOAD, lora_name="gone", lora_path="{adapters}"),
    _adapter("hub name that is not there", LOAD, lora_name="gone", lora_path="some/where"),
    _adapter("the base's name", LOAD, lora_name="base", lora_path="{adapters}/ada"),
    _adapter("rank too large", LOAD, lora_name="big", lora_path="{adapters}/big"),
    _adapter("already loaded", LOAD, lora_name="ada", lora_path="{adapters}/ada"),
    _adapter("in place", LOAD, lora_name="ada", lora_path="{adapters}/ada", load_inplace=True),
    _adapter("new", LOAD, lora_name="new", lora_path="{adapters}/bob"),
    Case("adapter: not JSON", LOAD, b"{nope"),
    Case("adapter: list with one more", "/v1/models", method="GET"),
    _adapter("unload", UNLOAD, lora_name="new"),
    _adapter("unload again", UNLOAD, lora_name="new"),
    _adapter("unload an empty name", UNLOAD, lora_name=""),
    _adapter("unload nothing", UNLOAD),
    Case("adapter: list", "/v1/models", method="GET"),
)
# On an engine with three slots, room for six on the host, and rank 128 at most.
PLUGIN_CASES = (
    Case("plugin: a first reply", COMPLETIONS, {"prompt": "The river runs", "max_tokens": 4, "ignore_eos": True}),
    _list("the list of nothing"),
    _load("load", "ada", "ada"),
    _load("load again", "ada", "ada"),
    _load("load on the host", "bob", "bob", tier="host"),
    _list("the list of two"),
    _load("another path", "ada", "cyd"),
    _load("another path, to replace", "ada", "cyd", replace=True),
    _load("the first path, to replace on the host", "ada", "ada", replace=True, tier="host"),
    _plugin("activate", "activate", name="bob"),
    _plugin("activate what is in a slot", "activate", name="bob"),
    _plugin("prefetch what is in a slot", "prefetch", name="bob"),
    _plugin("pin what is on the host", "pin", name="ada"),
    _plugin("pin what is in a slot", "pin", name="bob"),
    _load("load into the last slot", "cyd", "cyd"),
    _plugin("pin the last slot", "pin", name="cyd"),
    _plugin("pin again", "pin", name="ada"),
    _list("the list of pins"),
    _plugin("unpin", "unpin", name="bob"),
    _plugin("unpin again", "unpin", name="bob"),
    _load("load over the least recently used", "dee", "dee"),
    _list("the list of full slots"),
    *(_load(f"fill the host, {name}", name, name, tier="host") for name in ("eve", "fay", "guy")),
    _list("the list of a full host"),
    _plugin("prefetch from the disk", "prefetch", name="bob"),
    _plugin("activate from the disk", "activate", name="cyd"),
    _list("the list after that"),
    _plugin("unload", "unload", name="fay"),
    _plugin("unload again", "unload", name="fay"),
    _plugin("unload or refuse", "unload", name="guy", running="refuse"),
    _plugin("unload in time", "unload", name="cyd", running="wait", timeout_s=1.5),
    _plugin("unload what is on the disk", "unload", name="eve"),
    _plugin("unload what is pinned", "unload", name="ada"),
    _list("the list of what is left"),
    *(_plugin(f"{route} nobody", route, name="nobody") for route in ("prefetch", "activate", "pin", "unpin", "unload")),
    _load("path that is not there", "bad", "gone"),
    _plugin("relative path", "load", name="bad", path="some/where"),
    Case("plugin: a directory without an adapter", f"{PREFIX}/load", {"name": "bad", "path": "{adapters}"}),
    _load("rank too large", "bad", "huge"),
    _load("no weight fits", "bad", "lost"),
    _load("the base's name", "base", "ada"),
    _load("an empty name", "", "ada"),
    _plugin("an empty path", "load", name="bad", path=""),
    _load("a senseless tier", "bad", "ada", tier="moon"),
    _load("an unknown field", "bad", "ada", what=1),
    _load("a replace that is none", "bad", "ada", replace="often"),
    _plugin("nothing said to load", "load"),
    _plugin("nothing said to pin", "pin"),
    _plugin("a name that is none", "pin", name=3),
    _plugin("a senseless way to unload", "unload", name="bob", running="kill"),
    _plugin("a negative time", "unload", name="bob", timeout_s=-1),
    _plugin("a time that is none", "drain", timeout_s="long"),
    Case("plugin: not JSON", f"{PREFIX}/load", b"{nope"),
    Case("plugin: a list", f"{PREFIX}/pin", b"[]"),
    Case("plugin: nothing", f"{PREFIX}/pin", b""),
    _plugin("sleep", "sleep", level=1),
    _plugin("sleep too deep", "sleep", level=2),
    Case("plugin: sleep without a body", f"{PREFIX}/sleep"),
    _plugin("wake", "wake"),
    Case("plugin: wake without a body", f"{PREFIX}/wake"),
    _plugin("drain", "drain", timeout_s=5),
    _plugin("resume", "resume"),
    Case("plugin: drain without a body", f"{PREFIX}/drain"),
    Case("plugin: resume without a body", f"{PREFIX}/resume"),
    Case("plugin: wrong method", f"{PREFIX}/load", method="GET"),
    Case("plugin: wrong method for the list", f"{PREFIX}/adapters"),
    Case("plugin: unknown route", f"{PREFIX}/nope"),
    Case("plugin: wrong key", f"{PREFIX}/adapters", method="GET", headers={"authorization": "Bearer no"}),
    _load("load for vLLM's routes", "ada", "ada"),
    Case("plugin: vLLM's own load", LOAD, {"lora_name": "new", "lora_path": "{adapters}/eve"}),
    Case("plugin: vLLM's own load again", LOAD, {"lora_name": "new", "lora_path": "{adapters}/eve"}),
    Case(
        "plugin: vLLM's own load in place",
        LOAD,
        {"lora_name": "new", "lora_path": "{adapters}/fay", "load_inplace": True},
    ),
    Case("plugin: vLLM's own load of what fits nowhere", LOAD, {"lora_name": "bad", "lora_path": "{adapters}/lost"}),
    Case("plugin: vLLM's own load of too large a rank", LOAD, {"lora_name": "bad", "lora_path": "{adapters}/huge"}),
    _list("the list of what vLLM's own routes loaded"),
    Case("plugin: models", "/v1/models", method="GET"),
    Case("plugin: vLLM's own unload", UNLOAD, {"lora_name": "new"}),
    Case("plugin: vLLM's own unload again", UNLOAD, {"lora_name": "new"}),
    *(_plugin(f"at last, unload {name}", "unload", name=name) for name in ("ada", "bob", "dee")),
    _list("the list at last"),
)
_OTHERS = (
    Case("embeddings", "/v1/embeddings", {"model": "base", "input": "hi"}),
    Case("tokenize", "/tokenize", {"model": "base", "prompt": "The river"}),
    Case("tokenize a chat", "/tokenize", {"model": "base", "messages": [{"role": "user", "content": "hi"}]}),
    Case("detokenize", "/detokenize", {"model": "base", "tokens": [5, 6]}),
    Case("health", "/health", method="GET"),
    Case("health with HEAD", "/health", method="HEAD"),
    Case("ping", "/ping", method="GET"),
    Case("version", "/version", method="GET"),
    Case("metrics without a key", "/metrics", method="GET", headers={"authorization": ""}, wordless=True),
    Case("models without a key", "/v1/models", method="GET", headers={"authorization": ""}),
    Case("models with a wrong key", "/v1/models", method="GET", headers={"authorization": "Bearer no"}),
    Case("unknown route", "/v1/nope", method="GET"),
    Case("wrong method", CHAT, method="GET"),
    Case("OPTIONS", CHAT, method="OPTIONS"),
)
CASES = (*_CHATS, *_WRONG_CHATS, *_COMPLETIONS, *_RESPONSES, *_ADAPTERS, *_OTHERS)


def prepare(client: httpx2.Client, directory: Path) -> None:
    """Write the adapters that the cases name, and load the first two."""
    write_adapters(directory)
    for name in ("ada", "bob"):
        client.post(LOAD, json={"lora_name": name, "lora_path": str(directory / name)}).raise_for_status()


def write_adapters(directory: Path) -> None:
    """Write the adapters that the cases name: small ones, one too large for each engine, and one that fits nowhere."""
    for number, name in enumerate(("ada", "bob", "cyd", "dee", "eve", "fay", "guy")):
        write_adapter(directory / name, seed=number)
    for name, rank in (("big", 32), ("huge", 200)):
        write_adapter(directory / name, rank=rank)
    write_unmatched_adapter(directory / "lost")


def answer(client: httpx2.Client, case: Case, adapters: Path) -> dict[str, Any]:
    """Ask, and reduce the answer to what has to agree."""
    body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).replace("{adapters}", str(adapters))
    content = None if case.body is None else body
    headers = {"content-type": "application/json", **case.headers}
    reply = client.request(case.method, case.path, content=content, headers=headers)
    found = {name: reply.headers[name] for name in HEADERS if name in reply.headers}
    return {"status": reply.status_code, "headers": found, "body": _body(reply, case, adapters)}


def recorded() -> dict[str, Any]:
    """What the real vLLM answered, by the names of the cases."""
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def _body(reply: httpx2.Response, case: Case, adapters: Path) -> Any:  # noqa: ANN401 - JSON
    if case.wordless:
        return f"{len(reply.content) > 0}"
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        return _events(reply.text)
    if reply.headers.get("content-type") == "application/json" and reply.text:
        literal = LITERAL | LITERAL_OF_PLUGIN if case.path.startswith(PREFIX) else LITERAL
        return _shape(json.loads(reply.text.replace(str(adapters), "{adapters}")), literal=literal)
    return reply.text


def _events(text: str) -> list[Any]:
    """The shapes of a stream's events, in the order in which each is first seen."""
    assert text.endswith("\n\n")
    shapes: list[Any] = []
    for event in text.strip("\n").split("\n\n"):
        lines = [line.partition(": ")[::2] for line in event.split("\n")]
        shape = [_without_luck(_shape(json.loads(value))) if value[0] == "{" else value for _, value in lines]
        if None not in shape and shape not in shapes:
            shapes.append(shape)
    return shapes


def _without_luck(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The chunk without what depends on the model: whether a token, the last one too, has a text of its own."""
    for choice in chunk.get("choices", []):
        if "delta" in choice and choice["finish_reason"] is not None:
            choice["delta"] = "..."
        if choice.get("delta") == {}:
            return None
    return chunk


def _shape(value: Any, key: str = "", literal: AbstractSet[str] = LITERAL) -> Any:  # noqa: ANN401 - JSON
    """The value with everything replaced that may differ between two good engines."""
    if isinstance(value, dict):
        if key == "top_logprobs":
            return {"*": "float"}
        return {name: _shape(part, name, literal) for name, part in sorted(value.items())}
    if isinstance(value, list):
        shapes: list[Any] = []
        for part in value:
            if (shape := _shape(part, key, literal)) not in shapes:
                shapes.append(shape)
        return shapes
    if value is None or key in literal:
        return value
    return type(value).__name__


def main() -> None:
    """Record what the real vLLM answers: `python -m tests.support.contract PYTHON BASE`."""
    python, base = map(Path, sys.argv[1:])
    with real_engine(python, base) as engine, engine.client() as client:
        prepare(client, engine.adapters)
        answers = {case.name: answer(client, case, engine.adapters) for case in CASES}
    with real_engine(python, base, flags=PLUGIN_FLAGS, env=PLUGIN_ENV) as engine, engine.client() as client:
        write_adapters(engine.adapters)
        answers |= {case.name: answer(client, case, engine.adapters) for case in PLUGIN_CASES}
    RECORD.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
