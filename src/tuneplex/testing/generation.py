"""From what was asked to the tokens and texts of each choice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from tuneplex.testing.language import Continuation, Language, Recital
from tuneplex.testing.protocol import Ask
from tuneplex.testing.tokens import Detokenizer, Tokenizer

__all__ = ["LogProb", "Reply", "Step", "read", "steps"]


class LogProb(msgspec.Struct, frozen=True):
    """How likely one token was, and the likeliest ones (id and log-probability), itself first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Step(msgspec.Struct, frozen=True):
    """What one step adds to a choice.

    Attributes:
        token_id: The token; the one that ends the reply too.
        text: What may be shown now; empty inside a character and before a possible stop string.
        finish_reason: Set on the last step.
        stop_reason: The stop string or token id that ended it.
        logprob: Of the token, where asked for.
    """

    token_id: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprob: LogProb | None = None


class Reply(msgspec.Struct):
    """One whole choice."""

    text: str = ""
    token_ids: list[int] = []
    logprobs: list[LogProb] = []
    finish_reason: str = "stop"
    stop_reason: str | int | None = None

    def add(self, step: Step) -> None:
        """Take one more step into account."""
        self.text += step.text
        self.token_ids.append(step.token_id)
        if step.logprob is not None:
            self.logprobs.append(step.logprob)
        if step.finish_reason is not None:
            self.finish_reason, self.stop_reason = step.finish_reason, step.stop_reason


def steps(tokenizer: Tokenizer, ask: Ask, choice: int, weights: str) -> Iterator[Step]:
    """The steps of one choice; `weights` stands for what the model or adapter has learned."""
    speaker = _speaker(tokenizer, ask, choice, weights)
    text = Detokenizer(tokenizer, ask.stop, include_stop=ask.include_stop)
    for count in range(1, ask.room + 1):
        token_id = speaker.next(may_end=not ask.ignore_eos and count > ask.min_tokens)
        stop = None if _silent(ask, count, token_id) else text.add(token_id, may_stop=count > ask.min_tokens)
        finish, reason = _finish(ask, count, token_id, stop)
        shown = text.take(finished=finish is not None)
        yield Step(token_id, shown, finish, reason, _logprob(tokenizer, token_id, ask.logprobs))
        if finish is not None:
            return


def _speaker(tokenizer: Tokenizer, ask: Ask, choice: int, weights: str) -> Continuation | Recital:
    if ask.recital is not None:
        return Recital(tokenizer.encode(ask.recital))
    luck = "" if ask.greedy else f"{ask.seed or 0}/{choice % ask.n}"
    return Continuation(Language(tokenizer, f"{weights}|{luck}", ask.prompts[choice // ask.n]))


def _silent(ask: Ask, count: int, token_id: int) -> bool:
    """Whether a token ends the reply and has no text in it."""
    ends = token_id in ask.stop_token_ids and count > ask.min_tokens and not ask.include_stop
    return token_id == Tokenizer.eos or ends


def _finish(ask: Ask, count: int, token_id: int, stop: str | None) -> tuple[str | None, str | int | None]:
    if token_id == Tokenizer.eos and not ask.ignore_eos:
        return "stop", None
    if stop is not None:
        return "stop", stop
    if token_id in ask.stop_token_ids and count > ask.min_tokens:
        return "stop", token_id
    return ("length", None) if count == ask.room else (None, None)


def read(tokenizer: Tokenizer, prompt: list[int], alternatives: int, voice: str) -> list[LogProb]:
    """How likely a voice finds each token of a prompt but the first."""
    found = []
    for before, token_id in pairwise(prompt):
        one = _logprob(tokenizer, token_id, alternatives)
        if one is None:
            continue
        taste = hashlib.blake2b(f"{voice}|{before}|{token_id}".encode(), digest_size=2).digest()
        likely = one.logprob - (int.from_bytes(taste) / 16384 if voice else 0.0)
        found.append(LogProb(token_id, likely, one.top[1:]))
    return found


def _logprob(tokenizer: Tokenizer, token_id: int, alternatives: int | None) -> LogProb | None:
    if alternatives is None:
        return None
    words = tokenizer.plain_words
    others = (words[(token_id * 31 + number * 17) % len(words)] for number in range(1, alternatives + 2))
    rest = [(other, -1.5 - 0.25 * number) for number, other in enumerate(others) if other != token_id]
    likely = -0.125 * (1 + token_id % 7)
    return LogProb(token_id, likely, ((token_id, likely), *rest[:alternatives]))
