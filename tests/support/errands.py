"""Requests at random, each with what a FakeEngine must answer to it, and what is wrong with an answer."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from tests.support.front import VERSIONS
from tuneplex.testing import FakeEngine
from tuneplex.testing.asks import Asker
from tuneplex.testing.generation import Reply, steps
from tuneplex.testing.protocol import Ask, ChatRequest, CompletionRequest

__all__ = ["Answer", "Errand", "Errands"]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_WORDS = (
    "tell",
    "me",
    "more",
    "about",
    "the",
    "river",
    "🙂",
    "road",
    "世",
    "where",
    "we",
    "é",
    "day",
    "ж",
    "long",
    "한",
)
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}
# Fields with which a stream cannot be continued, or not always.
_ODD: tuple[dict[str, object], ...] = (
    {"seed": 7, "temperature": 1},
    {"n": 2, "temperature": 1},
    {"return_token_ids": True},
    {"tools": [_TOOL], "tool_choice": "required"},
)
_COMMON = frozenset({"id", "object", "created", "model"})


class Errand(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        path: Where it goes.
        body: What it says.
        prompt: Tokens of its prompt.
        truth: What each choice must say.
        sure: It may be begun anew or continued wherever it breaks off, so it never fails.
    """

    path: str
    body: dict[str, Any]
    prompt: int
    truth: list[Reply]
    sure: bool

    @property
    def stream(self) -> bool:
        """It asks for a stream."""
        return bool(self.body["stream"])

    @property
    def usage(self) -> bool:
        """It asks for the usage."""
        return not self.stream or bool(self.body.get("stream_options"))

    @property
    def tokens(self) -> int:
        """Tokens of its answer."""
        return sum(len(reply.token_ids) for reply in self.truth)


class Errands:
    """Makes requests; the same ones for the same seed.

    Args:
        seed: Of the chances.
        longest: Tokens of the longest answer; those that are not streamed have a tenth of it at most.
    """

    def __init__(self, seed: int, *, longest: int) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - not for secrets
        self._longest = longest
        self._tokenizer = FakeEngine().tokenizer
        self._asker = Asker(self._tokenizer, 8192)

    def next(self) -> Errand:
        """One more."""
        dice = self._dice
        stream = dice.random() < 0.9
        said = " ".join(dice.choices(_WORDS, k=dice.randrange(3, 30)))
        path = dice.choice((CHAT, CHAT, COMPLETIONS))
        body: dict[str, Any] = {"prompt": said} if path == COMPLETIONS else {"messages": _turns(dice, said)}
        body |= {
            "model": dice.choice(("base", *VERSIONS, *VERSIONS)),
            "max_tokens": dice.randrange(self._longest // 10, self._longest) if stream else self._longest // 10,
            "temperature": dice.choice((0, 0, 0, 0.8)),
            "stream": stream,
            "ignore_eos": dice.random() < 0.7,
        }
        odd = dice.choice(_ODD) if dice.random() < 0.1 else {}
        body |= {name: value for name, value in odd.items() if path == CHAT or "tool" not in name}
        if stream and dice.random() < 0.5:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": dice.random() < 0.5}
        if dice.random() < 0.2 and "n" not in odd:
            body["stop"] = self._stops(path, body)
        ask = self._ask(path, body)
        sure = not odd or not stream
        return Errand(path, body, len(ask.prompts[0]), self._replies(ask), sure)

    def _stops(self, path: str, body: dict[str, Any]) -> list[str]:
        """Strings that end it somewhere in the middle, and one that never comes."""
        text = self._replies(self._ask(path, body))[0].text
        at = self._dice.randrange(len(text) + 1)
        return ["nowhere to be seen", text[at : at + self._dice.randrange(1, 12)] or "!"]

    def _ask(self, path: str, body: dict[str, Any]) -> Ask:
        model = VERSIONS.get(body["model"], "base")
        if path == CHAT:
            return self._asker.chat(msgspec.convert(body, ChatRequest), model)
        return self._asker.completion(msgspec.convert(body, CompletionRequest), model)

    def _replies(self, ask: Ask) -> list[Reply]:
        replies = [Reply(token_ids=[]) for _ in range(ask.n)]
        for choice, reply in enumerate(replies):
            for step in steps(self._tokenizer, ask, choice, "" if ask.model == "base" else ask.model):
                reply.add(step)
        return replies


def _turns(dice: random.Random, said: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": "Be brief."}] if dice.random() < 0.5 else []
    return [*system, {"role": "user", "content": said}]


class Answer:
    """An answer as it was received, looked at choice by choice.

    Attributes:
        code: Of the error that it is, or that it ends with; None for a proper answer.
        wrong: What is wrong with it, whether or not it ends with an error; empty for nothing.
    """

    def __init__(self, errand: Errand, status: int, body: bytes) -> None:
        self.code: str | None = None
        self.wrong = ""
        self._errand = errand
        self._texts = [""] * len(errand.truth)
        self._ids: list[list[int]] = [[] for _ in errand.truth]
        self._finish: list[str | None] = [None] * len(errand.truth)
        self._roles = 0
        self._usages: list[dict[str, int]] = []
        self._seen: set[str] = set()
        try:
            if status == 200 and errand.stream:
                self._read_events(body)
            else:
                self._read_document(status, body)
        except (ValueError, LookupError, TypeError, msgspec.DecodeError) as error:
            self.wrong = f"cannot be read: {error!r}"

    def _read_document(self, status: int, body: bytes) -> None:
        document = msgspec.json.decode(body)
        if status != 200:
            self.code = document["error"]["code"] or str(status)
            return
        self._usages = [document["usage"]]
        for choice in document["choices"]:
            message = choice.get("message")
            self._choose(choice, choice["text"] if message is None else _said(message))
        self._compare(whole=True)

    def _read_events(self, body: bytes) -> None:
        events = [event for event in body.split(b"\n\n") if not event.startswith(b":")]
        if events.pop():
            raise ValueError("the last event is cut")
        ends = [number for number, event in enumerate(events, 1) if event == b"data: [DONE]"]
        for event in events[: len(events) - len(ends)]:
            self._take(msgspec.json.decode(event.removeprefix(b"data: ")))
        if self.code is None and ends != [len(events)]:
            raise ValueError(f"[DONE] at {ends} of {len(events)}")
        if self.code is not None and ends:
            raise ValueError("an error and [DONE]")
        self._compare(whole=self.code is None)

    def _take(self, event: dict[str, Any]) -> None:
        if self.code is not None:
            raise ValueError("something behind the error")
        if "error" in event:
            self.code = str(event["error"]["code"])
            return
        self._seen.add(json.dumps([event[name] for name in sorted(_COMMON)]))
        if event.get("usage"):
            self._usages.append(event["usage"])
        for choice in event["choices"]:
            delta = choice.get("delta")
            if delta is not None:
                self._roles += "role" in delta
            self._choose(choice, choice["text"] if delta is None else _said(delta))

    def _choose(self, choice: dict[str, Any], text: str) -> None:
        number = choice["index"]
        if self._finish[number] is not None:
            raise ValueError("something behind the end of a choice")
        self._texts[number] += text
        self._ids[number] += choice.get("token_ids") or []
        self._finish[number] = choice["finish_reason"]

    def _compare(self, *, whole: bool) -> None:
        errand = self._errand
        chat = errand.path == CHAT
        for text, ids, finish, truth in zip(self._texts, self._ids, self._finish, errand.truth, strict=True):
            if text != truth.text and (whole or not truth.text.startswith(text)):
                raise ValueError(f"says {text!r} instead of {truth.text!r}")
            wanted = truth.token_ids if errand.body.get("return_token_ids") else []
            if ids != (wanted if whole else wanted[: len(ids)]):
                raise ValueError(f"has the tokens {ids} instead of {wanted}")
            if whole and finish not in {truth.finish_reason, "tool_calls"}:
                raise ValueError(f"ends with {finish} instead of {truth.finish_reason}")
        if errand.stream and (len(self._seen) > 1 or (chat and whole and self._roles != len(errand.truth))):
            raise ValueError(f"begins several times: {self._seen}, {self._roles} roles")
        if whole:
            self._compare_usage()

    def _compare_usage(self) -> None:
        errand = self._errand
        if not errand.usage:
            if self._usages:
                raise ValueError(f"tells the usage unasked: {self._usages[-1]}")
            return
        last = self._usages[-1]
        told = last["prompt_tokens"], last["completion_tokens"], last["total_tokens"]
        if told != (errand.prompt, errand.tokens, errand.prompt + errand.tokens):
            raise ValueError(f"tells {last} for {errand.prompt} and {errand.tokens}")


def _said(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls") or ()
    return (message.get("content") or "") + "".join(call["function"].get("arguments") or "" for call in calls)
