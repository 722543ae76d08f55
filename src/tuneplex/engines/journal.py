"""The journal of a stream: what the client has got of it, so that it can go on elsewhere as if nothing had happened.

It is a meter around another one. The engine is asked for the token ids; the journal notes them and takes them out again
where the client has not asked for them. When the stream is continued, by another engine and as a plain completion of
the tokens that there are, the journal translates what that engine says into what the first one would have said.

An event that brings a token and nothing else is neither parsed nor written anew: all of them begin and end alike, and
what is between is cut out. What an event of that kind says is read only if the stream has to be continued.
"""

from __future__ import annotations

from array import array

import msgspec
from tokenizers import Tokenizer

from tuneplex.engines.chunks import (
    CHAT,
    COMPLETION,
    DONE,
    Chunk,
    Writer,
    envelope_of,
    read_chunk,
    without_ids,
)
from tuneplex.engines.continuing import Terms, asking_ids
from tuneplex.engines.meters import OPENS, Meter, Pattern, split_events
from tuneplex.engines.resuming import PRIMED, Found, Said, Seam, Stops, Watch, find_seam
from tuneplex.engines.usage import Usage

__all__ = ["Journal"]

_NEVER = b"\0"  # no event begins with it
_CHOICES = b'"choices"'
_NO_CHOICES = b'"choices":[]'
_NO_DELTA = b'"delta":{}'
_BORDERS = (b"\r\n\r\n", b"\n\n")
_PAGE = 128  # events that are noted before they are packed
# JSON has neither within a string.
_AFTER_TEXT, _AFTER_EVENT = b"\t", b"\n"

_numbers = msgspec.json.Decoder(list[int])
_strings = msgspec.json.Decoder(list[str])


class Journal:
    """Notes one stream; see `Meter` and the words above.

    Args:
        terms: What the request's continuation depends on.
        inner: The meter that the stream would have had otherwise. It sees what the client sees.
        context: Tokens that prompt and reply may have together; needed where the client does not limit the reply.

    Attributes:
        over: Nothing more of the engine is wanted: the stream was ended, or it has `failed`.
        failed: A continuation has said something that cannot be translated.
    """

    __slots__ = (
        "_alone",
        "_asked",
        "_closes",
        "_context",
        "_done",
        "_end",
        "_ends",
        "_envelope",
        "_extra",
        "_finished",
        "_form",
        "_head",
        "_heard",
        "_held",
        "_inner",
        "_kept",
        "_odd",
        "_page",
        "_pages",
        "_prefix",
        "_prompt",
        "_seam",
        "_shown",
        "_start",
        "_stops",
        "_tail",
        "_terms",
        "_told",
        "_unseen",
        "_watch",
        "_writer",
        "failed",
        "last",
        "over",
    )

    def __init__(self, terms: Terms, inner: Meter, *, context: int | None) -> None:
        self.last = b""
        self.over = False
        self.failed = False
        self._terms = terms
        self._inner = inner
        self._context = context
        self._stops = Stops(terms.stop, terms.reach, included=terms.include_stop)
        self._envelope = b""
        self._writer: Writer | None = None  # only where something has to be written
        self._prompt = b""  # its tokens, as the engine has told them
        self._asked = 0  # how many those are
        self._alone = 0  # events that the inner meter has not seen,
        self._unseen = 0  # and those of them since it has last seen one
        self._kept = array("I")  # tokens up to the last seam
        self._odd = False
        self._finished = False
        self._told = False  # the whole usage
        self._done = False
        self._begin(None)

    def _begin(self, seam: Seam | None) -> None:
        """Nothing is known yet of how the engine writes, and nothing was said behind the seam."""
        self._form = CHAT if self._terms.chat and seam is None else COMPLETION
        self._closes = self._form.closes
        self._prefix = self._ends = _NEVER
        self._head = self._tail = b""
        self._start = self._end = 0
        self._page: list[bytes] = []
        self._pages: list[bytes] = []
        self._extra = 0  # tokens of events with more than one
        self._seam = seam
        self._watch: Watch | None = None if seam is None else seam.watch
        self._held = "" if seam is None else seam.held
        self._heard = ""  # while there is a watch: what the engine has said,
        self._shown = 0  # and how many characters of what was held and of that the client has got

    # --- the meter

    def one(self, event: bytes) -> bytes:
        """Note it, and pass on what the inner meter does; see `Meter`."""
        self.last = event
        self._unseen = 0
        shown = self._take(event)
        if not shown:
            return b""
        return self._inner.many(shown) if self.over else self._inner.one(shown)

    def many(self, events: bytes) -> bytes:
        """Note them, and pass on what the inner meter does; see `Meter`."""
        if not events:
            return b""
        self.last = events
        self._unseen = 0
        shown = b"".join(map(self._take, split_events(events)))
        return self._inner.many(shown) if shown else b""

    def pattern(self, event: bytes) -> Pattern | None:
        """As it was learned, if the inner meter need not see what becomes of such events; see `Meter`."""
        if not (self._prompt and event.startswith(self._prefix) and event.endswith(self._ends)):
            return None
        if self._inner.pattern(self._head + self._tail) is None:
            return None
        return Pattern(self._prefix, self._ends, self._head)

    def between(self, event: bytes) -> bytes:
        """Note it; see `Meter`."""
        self.last = event
        shown = self._cut_out(event)
        if shown:
            self._alone += 1
            self._unseen += 1
        return shown

    def rest(self) -> bytes:
        """What the inner meter has kept back."""
        return self._inner.rest()

    def used(self) -> Usage:
        """As the engine tells it, or else by the token ids; see `Meter`."""
        told = self._inner.used()
        if (told.exact and not self._unseen) or not self._prompt:
            return told
        said = max(self.tokens, told.completion + self._alone) if self._odd else self.tokens
        return Usage(self._asked, said, told.cached, exact=self._finished and not self._odd)

    # --- what there is

    @property
    def tokens(self) -> int:
        """How many tokens the reply has, with those whose text is not complete."""
        return len(self._kept) + len(self._pages) * _PAGE + len(self._page) + self._extra

    @property
    def continuable_now(self) -> bool:
        """Whether `seam` may find one: the stream has begun and not ended, and nothing strange was seen."""
        return bool(self._prompt) and not (self._finished or self._odd or self.over)

    def closing(self) -> bytes:
        """The events that are missing behind the end of the reply; empty if it has not ended, or none is missing."""
        if not self._finished or self._done or not self._prompt:
            return b""
        return self._inner.many(self._last_events())

    # --- event by event

    def _take(self, event: bytes) -> bytes:
        """Note one event; what the client is to see of it, which is several events only at an end of ours."""
        if event.startswith(self._prefix) and event.endswith(self._ends):
            shown = self._cut_out(event)
            if shown:
                return self._head + shown
        return self._look(event)

    def _cut_out(self, event: bytes) -> bytes:
        """Note an event that begins and ends as usual; what the client sees behind its beginning, or nothing at all."""
        piece = event[self._start : self._end]
        text, _, ids = piece.partition(self._closes)
        if not ids.isdigit():
            if not ids.replace(b",", b"").isdigit():
                return b""
            self._extra += ids.count(b",")
        page = self._page
        page.append(piece)
        if len(page) == _PAGE:
            self._pack()
        return text + self._tail

    def _look(self, event: bytes) -> bytes:
        """The same for an event that is not of the usual kind."""
        if self.over:
            return b""
        if _CHOICES not in event:
            return self._other(event)
        return self._whole_usage(event) if _NO_CHOICES in event else self._choice(event)

    def _choice(self, event: bytes) -> bytes:
        """An event that brings something."""
        chunk = read_chunk(event)
        if chunk is None:
            return self._strange(event)
        if chunk.text is None:
            return self._whole_usage(event)
        if chunk.prompt and not self._prompt:
            self._prompt = chunk.prompt
            self._asked = chunk.prompt.count(b",") + 1
            self._envelope = envelope_of(event)
        if not chunk.opening:
            self._note(chunk, chunk.text)
        if self._seam is None:
            self._learn(event)
            return self._hidden(event, chunk)
        return self._translated(event, chunk)

    def _other(self, event: bytes) -> bytes:
        """`[DONE]`, or a comment."""
        done = event.rstrip() == DONE.rstrip()
        self._done = self._done or done
        if self._seam is None:
            return event
        return DONE if done else b""

    def _strange(self, event: bytes) -> bytes:
        """Nothing that is known here, so nothing that can be translated, or continued."""
        self._odd = True
        if self._seam is None:
            return event if self._terms.shows_ids else without_ids(event)
        return self._fail()

    def _fail(self) -> bytes:
        self.failed = self.over = True
        return b""

    def _whole_usage(self, event: bytes) -> bytes:
        self._told = True
        if self._seam is None:
            return event
        chunk = read_chunk(event)
        if chunk is None or chunk.usage is None:
            return self._fail()
        said, details = chunk.usage
        return self._write().usage(len(self._kept) + said, details, chunk.fingerprint)

    def _note(self, chunk: Chunk, text: str) -> None:
        """What `_take` does with an event of the usual kind."""
        ids = chunk.ids or []
        self._page.append(msgspec.json.encode(text)[1:-1] + self._closes + msgspec.json.encode(ids)[1:-1])
        self._extra += len(ids) - 1
        if len(self._page) == _PAGE:
            self._pack()
        self._odd = self._odd or chunk.ids is None
        self._finished = self._finished or chunk.finish is not None

    def _pack(self) -> None:
        """Keep the text and the ids of a full page only."""
        self._pages.append(_packed(self._page, self._closes))
        self._page.clear()

    def _learn(self, event: bytes) -> None:
        """Learn how the events of the usual kind begin and end, if this is one, and what the client sees there."""
        form = self._form
        prefix = envelope_of(event) + OPENS + form.opens
        border = next((border for border in _BORDERS if event.endswith(border)), b"")
        if self._terms.shows_ids or not event.startswith(prefix) or not event.endswith(form.ends + border):
            return
        shown = CHAT if self._terms.chat else COMPLETION
        self._prefix, self._ends = prefix, form.ends + border
        self._start, self._end = len(prefix), -len(self._ends)
        self._head = self._envelope + OPENS + shown.opens
        self._tail = shown.closes[:-1] + b"null" + shown.ends[1:] + (border if self._seam is None else b"\n\n")

    def _hidden(self, event: bytes, chunk: Chunk) -> bytes:
        """The event as it would have come if nobody had asked for the ids."""
        if self._terms.shows_ids:
            return event
        if _NO_DELTA in event and chunk.finish is None:  # it came for the ids only
            return b""
        return without_ids(event)

    # --- a continuation

    def _translated(self, event: bytes, chunk: Chunk) -> bytes:
        """The event as the first engine would have written it."""
        if self._watch is None:
            self._learn(event)
            return self._write().choice(chunk, self.tokens)
        ids = chunk.ids or []
        skips = chunk.finish == "stop" and not isinstance(chunk.stop, str) and not self._terms.include_stop
        try:
            found = self._watch.add(ids[:-1] if skips else ids)
        except Exception:  # noqa: BLE001 - tokens that make no text; the library has no class of errors of its own
            return self._fail()
        if found is not None:
            return self._stopped(found, chunk, ids)
        text = self._let_through(self._watch, chunk)
        return self._write().choice(msgspec.structs.replace(chunk, text=text), self.tokens)

    def _let_through(self, watch: Watch, chunk: Chunk) -> str:
        """The text that an engine which knew all of it would give away now."""
        self._heard += chunk.text or ""
        text = self._held + self._heard
        end = len(text)
        if not watch.over and chunk.finish is None:
            end = max(self._shown, min(end, len(self._held) + watch.new - self._terms.hold))
        new, self._shown = text[self._shown : end], end
        if watch.over:
            self._watch = None
        return new

    def _stopped(self, found: Found, chunk: Chunk, ids: list[int]) -> bytes:
        """End the stream as the first engine would have at this stop string."""
        if len(found.text) < self._shown:
            return self._fail()
        self._extra -= len(ids) - found.tokens
        self._finished = True
        text, said = found.text[self._shown :], ids[: found.tokens]
        ended = Chunk(text, ids=said, finish="stop", stop=found.string, usage=chunk.usage)
        return self._write().choice(ended, self.tokens) + self._last_events()

    def _last_events(self) -> bytes:
        """The events behind the end of the reply, which then is over."""
        told = b"" if self._told or not self._terms.usage else self._write().usage(self.tokens)
        self.over = self._done = True
        return told + DONE

    def _write(self) -> Writer:
        if self._writer is None:
            terms = self._terms
            self._writer = Writer(self._envelope, chat=terms.chat, prompt=self._asked, ids=terms.shows_ids)
        return self._writer

    # --- going on elsewhere

    def seam(self, tokenizer: Tokenizer) -> Seam | None:
        """Where the stream can be continued now; None if it cannot be without a difference.

        It may take milliseconds, and is for another thread: nothing may be noted meanwhile.

        Args:
            tokenizer: The base's.
        """
        said = self._said() if self.continuable_now else None
        if said is None:
            return None
        seam = find_seam(tokenizer, said, self._stops, skip_special=self._terms.skip_special)
        if seam is None or (self._terms.shows_ids and len(seam.ids) < len(said.ids)):
            return None  # the client would get ids twice
        count = len(self._kept) + len(seam.ids)
        if self._terms.stop and count < self._terms.min_tokens:
            return None  # stop strings do not count up to there
        room = self._room(count)
        return seam if room is not None and room > 0 else None

    def resume(self, seam: Seam) -> dict[str, msgspec.Raw]:
        """Go on at a seam: the events that come next are another engine's.

        Args:
            seam: From `seam`, with nothing noted since.

        Returns:
            The fields of the request to send, as for plain completions.
        """
        self._kept.extend(seam.ids)
        self._begin(seam)
        count = len(self._kept)
        kept = msgspec.json.encode(self._kept.tolist())[1:-1]
        changed = {
            "prompt": b"[%b]" % b",".join(filter(None, (self._prompt, kept))),
            "max_tokens": b"%d" % (self._room(count) or 0),
            "min_tokens": b"%d" % max(0, self._terms.min_tokens - count),
        }
        return asking_ids({**self._terms.fields, **{name: msgspec.Raw(value) for name, value in changed.items()}})

    def _room(self, count: int) -> int | None:
        """How many tokens may still come after so many of the reply; None if nobody knows."""
        if self._terms.max_tokens is not None:
            return self._terms.max_tokens - count
        return None if self._context is None else self._context - self._asked - count

    def _said(self) -> Said | None:
        """What the engine has said since the last seam; None if that cannot be read."""
        lines = _AFTER_EVENT.join([*self._pages, _packed(self._page, self._closes)]).split(_AFTER_EVENT)
        parts = [line.partition(_AFTER_TEXT) for line in lines if line]
        try:
            heard = "".join(_strings.decode(b'["%b"]' % b'","'.join(text for text, _, _ in parts)))
            ids = _numbers.decode(b"[%b]" % b",".join(ids for _, _, ids in parts if ids))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        shown = self._held + heard
        return Said(
            prompt=self._last_of_prompt(),
            ids=ids,
            before="" if self._seam is None else self._seam.before,
            held=self._held,
            length=0 if self._seam is None else self._seam.length,
            shown=shown if self._watch is None else shown[: self._shown],
        )

    def _last_of_prompt(self) -> list[int]:
        """The last tokens that the engine had as its prompt."""
        numbers = self._prompt.rsplit(b",", PRIMED)[-PRIMED:]
        return [*map(int, numbers), *self._kept][-PRIMED:]


def _packed(page: list[bytes], closes: bytes) -> bytes:
    return _AFTER_EVENT.join(page).replace(closes, _AFTER_TEXT)
