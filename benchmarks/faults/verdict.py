"""What was seen, compared with what must be, and in the words of the table: pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.faults.fault import Ask, Fault
from benchmarks.faults.seen import End, Reply, Seen

__all__ = ["problems", "words"]

_HELD_MB = 20.0  # sockets hold some, in the kernel
_SOON_S = 0.5
_ERRORS = frozenset({End.REFUSED, End.EVENT, End.EVENT_DONE})


def problems(fault: Fault, seen: Seen) -> list[str]:
    """What is not as `fault.expected` says, in words; nothing if all is."""
    return list(_problems(fault, seen))


def _problems(fault: Fault, seen: Seen) -> Iterator[str]:
    expected, ask = fault.expected, fault.ask
    least, most = expected.tries
    if not least <= seen.tries <= most:
        yield f"{seen.tries} tries instead of {least} to {most}"
    *earlier, last = seen.replies
    final = seen.replies if ask.together > 1 or (ask.times > 1 and not ask.until_whole) else (last,)
    for reply in final:
        yield from _final(fault, reply)
    for reply in earlier if ask.until_whole else ():
        if reply.end is not End.REFUSED or reply.status not in expected.before:
            yield f"before the whole answer: {_reply(reply)}"
    if any(reply.leaks for reply in seen.replies):
        yield "the engine's address is told"
    if ask.leave is not None and seen.closed_s is None:
        yield "the engine's side stays open"
    if seen.held_mb is not None and seen.held_mb > _HELD_MB:
        yield f"{seen.held_mb:.0f} MB were taken for a client that reads nothing"


def _final(fault: Fault, reply: Reply) -> Iterator[str]:
    expected = fault.expected
    if reply.end is not expected.end:
        yield f"{_reply(reply)} instead of: {expected.end}"
        return
    if expected.status is not None and reply.status != expected.status:
        yield f"status {reply.status} instead of {expected.status}"
    if expected.code and reply.code != expected.code:
        yield f"code {reply.code!r} instead of {expected.code!r}"
    if (reply.retry_after or 0) < expected.retry_after:
        yield f"retry-after {reply.retry_after} instead of {expected.retry_after}"
    if reply.end in _ERRORS and not reply.openai:
        yield "an error that has not OpenAI's shape"
    if reply.doubled and fault.first and fault.first[0].repeat_chunk is None:
        yield f"doubled: {', '.join(reply.doubled)}"


def words(fault: Fault, seen: Seen) -> str:
    """What to write into the table, beginning with how the (last) reply ended."""
    if not seen.began:
        return "does not start"
    parts = [_ends(fault.ask, seen.replies)]
    if fault.ask.leave is not None:
        parts = [f"{seen.replies[-1].end}; {_closed(seen)}"]
    if seen.held_mb is not None:
        parts.append(f"{seen.held_mb:.0f} MB taken meanwhile" + _grown(seen))
    if seen.well_s is not None:
        parts.append(f"well {seen.well_s:.1f} s after the last fault")
    elif fault.ask.until_whole:
        parts.append("not well until the client gives up")
    asked = len(seen.replies)
    if seen.tries != asked:
        parts.append(f"{seen.tries} {'try' if seen.tries == 1 else 'tries'}" + (f" for {asked}" if asked > 1 else ""))
    if any(reply.leaks for reply in seen.replies):
        parts.append("tells the engine's address")
    return "; ".join(parts)


def _closed(seen: Seen) -> str:
    if seen.closed_s is None:
        return "the engine's side stays open"
    return f"the engine's side is closed {'at once' if seen.closed_s < _SOON_S else f'after {seen.closed_s:.1f} s'}"


def _grown(seen: Seen) -> str:
    return "" if seen.grown_mb is None else f", memory +{max(0.0, seen.grown_mb):.0f} MB"


def _ends(ask: Ask, replies: tuple[Reply, ...]) -> str:
    """Equal ones together, in the order in which each was first seen; the last one for itself where all wait for it."""
    told = [_reply(reply) for reply in replies]
    last = [told.pop()] if ask.until_whole and replies[-1].end is End.WHOLE else []
    counts = {text: told.count(text) for text in dict.fromkeys(told)}
    groups = [text if count == 1 else f"{count} times {text}" for text, count in counts.items()]
    return ", then ".join(", ".join(part) for part in (groups, last) if part)


def _reply(reply: Reply) -> str:
    if reply.end is End.REFUSED:
        return f"{reply.end} {reply.status}{_error(reply)}"
    if reply.end is End.SILENCE:
        return f"{reply.end}{' more' if reply.events else ''} for {reply.seconds:.0f} s"
    if reply.end in {End.EVENT, End.EVENT_DONE}:
        return f"{reply.end}{_error(reply)}"
    return f"{reply.end}{', ' + ' and '.join(reply.doubled) + ' twice' if reply.doubled else ''}"


def _error(reply: Reply) -> str:
    code = f" `{reply.code}`" if reply.code and reply.code != str(reply.status) else ""
    after = f", retry-after {reply.retry_after}" if reply.retry_after is not None else ""
    return f"{code}{after}{'' if reply.openai else ', not in OpenAI’s shape'}"  # noqa: RUF001 - for readers
