"""Clients that listen to streams, each in a thread of its own, and what they have heard."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
from openai import OpenAI

from tests.support.fleets import Fleet

__all__ = ["CHAT", "COMPLETIONS", "Ask", "Listener"]

CHAT, COMPLETIONS = "chat/completions", "completions"
PATIENCE_S = 280.0
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Ask:
    """A stream to ask for.

    Attributes:
        path: The route.
        body: Its fields.
        by_openai: OpenAI's own client asks for it.
    """

    path: str
    body: dict[str, Any]
    by_openai: bool = False

    def but(self, **fields: object) -> Ask:
        """The same with other fields."""
        return replace(self, body={**self.body, **fields})

    def by_client(self) -> Ask:
        """The same by OpenAI's own client."""
        return replace(self, by_openai=True)


@dataclass
class Listener:
    """One stream, which begins at once.

    Attributes:
        raw: All that came of its body; empty for OpenAI's client, which does not show it.
        events: What it says, without comments and `[DONE]`.
        times: When each of them came.
        error: What went wrong.
    """

    fleet: Fleet
    ask: Ask
    raw: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: str = ""

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def done(self) -> Listener:
        """Wait for its end."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self

    def _listen(self) -> None:
        try:
            if self.ask.by_openai:
                self._listen_with_openai()
            else:
                self._listen_raw()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test that reads it fails
            self.error = repr(error)

    def _listen_raw(self) -> None:
        rest = b""
        with self.fleet.client() as client:
            client.timeout = httpx2.Timeout(PATIENCE_S)
            with client.stream("POST", f"/{self.ask.path}", json={"stream": True, **self.ask.body}) as reply:
                for piece in reply.iter_raw():
                    self.raw += piece
                    *events, rest = (rest + piece).split(b"\n\n")
                    for event in events:
                        self._take(event + b"\n\n")
        if rest or not self.raw.endswith(_DONE):
            self.error = self.raw[-500:].decode()

    def _take(self, event: bytes) -> None:
        if event != _DONE and not event.startswith(b":"):
            self.times.append(time.monotonic())
            self.events.append(json.loads(event.removeprefix(b"data: ")))

    def _listen_with_openai(self) -> None:
        info = self.fleet.state.supervisor()
        assert info is not None
        with OpenAI(base_url=info.url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
            create: Any = client.chat.completions.create if self.ask.path == CHAT else client.completions.create
            named = {name: self.ask.body[name] for name in self.ask.body if name in _NAMED}
            more = {name: self.ask.body[name] for name in self.ask.body if name not in _NAMED}
            for chunk in create(**named, stream=True, extra_body=more):
                self.times.append(time.monotonic())
                self.events.append(chunk.model_dump(exclude_unset=True))

    # --- what it says

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Its only choice, as it stands in the events."""
        return [choice for event in self.events for choice in event.get("choices", ())]

    @property
    def text(self) -> str:
        """All of it."""
        if self.ask.path == CHAT:
            return "".join(choice["delta"].get("content") or "" for choice in self.choices)
        return "".join(choice["text"] for choice in self.choices)

    @property
    def ids(self) -> list[int]:
        """Of its tokens, if it was asked for them."""
        return [one for choice in self.choices for one in choice.get("token_ids") or ()]

    @property
    def prompt_ids(self) -> list[list[int]]:
        """Of its prompt, as often as they came."""
        found = [owner.get("prompt_token_ids") for event in self.events for owner in (event, *event.get("choices", ()))]
        return [ids for ids in found if ids is not None]

    @property
    def ends(self) -> list[str]:
        """The reasons why it ended."""
        return [choice["finish_reason"] for choice in self.choices if choice.get("finish_reason")]

    @property
    def usages(self) -> list[dict[str, Any]]:
        """What it has used, in the events that have no choice."""
        return [event["usage"] for event in self.events if event.get("choices") == [] and event.get("usage")]

    @property
    def longest_silence_s(self) -> float:
        """Between two of its events."""
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False))

    def is_whole(self) -> None:
        """Assert that it reads as one reply of one engine."""
        assert self.error == ""
        assert {len({event[name] for event in self.events}) for name in ("id", "created", "model", "object")} == {1}
        assert len(self.ends) == 1
        assert self.choices[-1]["finish_reason"] == self.ends[0]
        assert self.raw.count(_DONE) == (0 if self.ask.by_openai else 1)
        roles = [choice["delta"].get("role") for choice in self.choices if "delta" in choice]
        assert [role for role in roles if role] == (["assistant"] if self.ask.path == CHAT else [])


_NAMED = frozenset({"model", "messages", "prompt", "max_tokens", "temperature", "stop", "stream_options"})
