"""The list of faults. The tests, the script and docs/faults.md all go by it."""

from __future__ import annotations

import json

from benchmarks.faults.fault import Ask, Expected, Fault, Leave, Outside
from benchmarks.faults.seen import End
from tuneplex.testing import Script

__all__ = ["FAULTS"]

_PACE_S = 0.02
_FLOOD = 64_000_000
_AGAIN = Expected(tries=(2, 2))  # the whole answer, by asking once more
_LEFT = Expected(end=End.LEFT)
_UNARY = Ask(stream=False)
# What vLLM answers when its EngineCore has died.
_DEAD = json.dumps(
    {
        "error": {
            "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
    }
)
_HALF_DOCUMENT = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 400\r\n\r\n" + '{"id":"chat'


def _refused(status: int, code: str = "", *, tries: tuple[int, int] = (1, 1), retry_after: int = 0) -> Expected:
    return Expected(end=End.REFUSED, status=status, code=code, tries=tries, retry_after=retry_after)


def _event(code: str = "") -> Expected:
    return Expected(end=End.EVENT, code=code)


_LEAVING = (
    Fault(
        name="leave-before-headers",
        what="The client leaves while the engine has not answered yet.",
        always=Script(silent_before_headers=True),
        ask=Ask(leave=Leave.WITHOUT_HEADERS),
        expected=_LEFT,
    ),
    Fault(
        name="leave-after-headers",
        what="The client leaves when the engine has sent headers and no event.",
        always=Script(silent_after_chunks=0),
        ask=Ask(leave=Leave.WITHOUT_EVENTS),
        expected=_LEFT,
    ),
    Fault(
        name="leave-mid-stream",
        what="The client leaves in the middle of a stream.",
        always=Script(between_chunks_s=0.05),
        ask=Ask(leave=Leave.MIDDLE),
        expected=_LEFT,
    ),
    Fault(
        name="leave-silent-stream",
        what="The client leaves a stream that has fallen silent after 10 events.",
        always=Script(silent_after_chunks=10),
        ask=Ask(leave=Leave.MIDDLE),
        expected=_LEFT,
    ),
    Fault(
        name="slow-reader",
        what="A client reads nothing of a stream of 64 MB for a while, and then all of it.",
        always=Script(flood=_FLOOD, flood_event=32768),
        ask=Ask(late=True),
        expected=Expected(),
    ),
)

_MID_STREAM = (
    Fault(
        name="close-mid-stream",
        what="The engine closes the connection after 10 events.",
        first=(Script(close_after_chunks=10),),
        expected=_AGAIN,
    ),
    Fault(
        name="reset-mid-stream",
        what="The engine resets the connection after 10 events.",
        first=(Script(reset_after_chunks=10),),
        expected=_AGAIN,
    ),
    Fault(
        name="close-mid-stream-alone",
        what="The same, and there is no other engine.",
        engines=1,
        first=(Script(close_after_chunks=10),),
        expected=_AGAIN,
    ),
    Fault(
        name="half-an-event",
        what="The engine resets the connection in the middle of an event.",
        first=(Script(break_in_chunk=10),),
        expected=_AGAIN,
    ),
    Fault(
        name="every-engine-breaks",
        what="Every engine breaks off after 10 further events, again and again.",
        always=Script(reset_after_chunks=10),
        expected=Expected(tries=(3, 8)),
    ),
    Fault(
        name="no-engine-gets-further",
        what="An engine breaks off after 10 events, and all others do before their first one.",
        first=(Script(reset_after_chunks=10),),
        always=Script(reset_after_chunks=0),
        expected=Expected(end=End.EVENT, tries=(2, 3)),
    ),
    Fault(
        name="stall",
        what="The engine sends nothing more after 10 events, and keeps the connection open.",
        first=(Script(silent_after_chunks=10),),
        expected=_AGAIN,
    ),
    Fault(
        name="stall-alone",
        what="The same, and there is no other engine.",
        engines=1,
        first=(Script(silent_after_chunks=10),),
        expected=_event("engine_stalled"),
    ),
    Fault(
        name="out-of-memory",
        what="An engine runs out of memory while it and another one send 8 streams.",
        first=(Script(die_after_chunks=10, between_chunks_s=_PACE_S),),
        always=Script(between_chunks_s=_PACE_S),
        ask=Ask(together=8),
        expected=Expected(tries=(9, 16)),
    ),
    Fault(
        name="error-event",
        what="The engine sends an error event after 10 events, as vLLM does when this one request has failed.",
        first=(Script(error_after_chunks=10),),
        expected=_event("engine_error"),
    ),
    Fault(
        name="engine-dead-event",
        what="The engine's core dies after 10 events, and its server says so in an error event, as vLLM does.",
        first=(Script(error_after_chunks=10, body=_DEAD),),
        expected=_AGAIN,
    ),
    Fault(
        name="no-done",
        what="The engine ends its stream without `[DONE]`; all else has come.",
        first=(Script(drop_done=True),),
        expected=Expected(),
    ),
    Fault(
        name="no-json-in-event",
        what="One event of the stream is no JSON.",
        first=(Script(garble_chunk=10),),
        expected=_AGAIN,
    ),
    Fault(
        name="role-twice",
        what="The engine sends its first event, with the role, twice.",
        first=(Script(repeat_chunk=0),),
        expected=Expected(),
    ),
    Fault(
        name="trickle",
        what="The engine needs 0.1 s for each event.",
        always=Script(between_chunks_s=0.1),
        ask=Ask(tokens=20),
        expected=Expected(),
    ),
    Fault(
        name="trickle-for-ever",
        what="The same for 100 events, which is longer than a reply may take.",
        always=Script(between_chunks_s=0.1, text=" on" * 100),
        ask=Ask(tokens=200),
        expected=_event(),
    ),
    Fault(
        name="drained",
        what="An engine in the middle of a stream is announced to be stopped within half a second, and then is.",
        always=Script(between_chunks_s=0.05),
        drained=True,
        expected=_AGAIN,
    ),
)

_STATUSES = (
    Fault(
        name="500-once",
        what="One request gets 500 (this one request has failed, the engine lives).",
        first=(Script(status=500),),
        ask=_UNARY,
        expected=_refused(500),
    ),
    Fault(
        name="500-always",
        what="All requests get 500.",
        always=Script(status=500),
        ask=_UNARY,
        expected=_refused(500),
    ),
    Fault(
        name="engine-dead-once",
        what="An engine whose core has died answers 500, as vLLM does.",
        first=(Script(status=500, body=_DEAD),),
        expected=_AGAIN,
    ),
    Fault(
        name="engine-dead-always",
        what="The core of every engine has died.",
        always=Script(status=500, body=_DEAD),
        expected=Expected(end=End.REFUSED, tries=(2, 2)),
    ),
    *(
        Fault(
            name=f"{status}-once",
            what=f"One request gets {status}.",
            first=(Script(status=status, body="<html>", content_type="text/html"),),
            expected=_AGAIN,
        )
        for status in (502, 503, 504)
    ),
    *(
        Fault(
            name=f"{status}-always",
            what=f"All requests get {status}.",
            always=Script(status=status, body="<html>", content_type="text/html"),
            expected=_refused(told, tries=(2, 3)),
        )
        for status, told in ((502, 502), (503, 503), (504, 502))
    ),
    Fault(
        name="503-with-retry-after",
        what="All requests get 503 with `retry-after: 2`.",
        always=Script(status=503, retry_after=2),
        expected=_refused(503, tries=(1, 3), retry_after=1),
    ),
    Fault(
        name="429-alone",
        what="The only engine answers 429 with `retry-after: 2`, once.",
        engines=1,
        first=(Script(status=429, retry_after=2),),
        expected=_AGAIN,
    ),
    Fault(
        name="429-once",
        what="One of two engines answers 429 with `retry-after: 2`, once.",
        first=(Script(status=429, retry_after=2),),
        expected=_AGAIN,
    ),
    Fault(
        name="429-always",
        what="All engines answer 429 with `retry-after: 2`.",
        always=Script(status=429, retry_after=2),
        expected=_refused(429, tries=(2, 3), retry_after=1),
    ),
    Fault(
        name="400-always",
        what="All requests get 400: it is the request that is wrong.",
        always=Script(status=400),
        expected=_refused(400),
    ),
)

_NO_REPLY = (
    Fault(
        name="reset-once",
        what="The engine resets the connection instead of answering, once.",
        first=(Script(reset_before_headers=True),),
        expected=_AGAIN,
    ),
    Fault(
        name="reset-always",
        what="All engines reset the connection instead of answering.",
        always=Script(reset_before_headers=True),
        expected=_refused(502, tries=(2, 4)),  # one of them without the fields that the gateway has added
    ),
    Fault(
        name="no-engine-listens",
        what="One of two engines is gone: nobody listens at its address.",
        dead=1,
        ask=Ask(times=4),
        expected=Expected(tries=(4, 4)),
    ),
    Fault(
        name="nobody-listens",
        what="All engines are gone.",
        dead=2,
        expected=_refused(503, "engine_unreachable", tries=(0, 0), retry_after=1),
    ),
    Fault(
        name="silence",
        what="One engine takes the request and never answers.",
        first=(Script(silent_before_headers=True),),
        expected=_AGAIN,
    ),
    Fault(
        name="silence-alone",
        what="The same, and there is no other engine.",
        engines=1,
        first=(Script(silent_before_headers=True),),
        expected=_refused(504, "engine_timeout"),
    ),
    Fault(
        name="half-a-document",
        what="The engine closes the connection in the middle of a reply that is no stream.",
        first=(Script(raw=_HALF_DOCUMENT),),
        ask=_UNARY,
        expected=_AGAIN,
    ),
    Fault(
        name="no-http",
        what="What answers at the engine's address does not speak HTTP, once.",
        first=(Script(raw="SSH-2.0-OpenSSH_9.2\r\n"),),
        expected=_AGAIN,
    ),
    Fault(
        name="html",
        what="The reply is a page in HTML with status 200, once.",
        first=(Script(content_type="text/html", body="<html>Please log in.</html>"),),
        expected=_AGAIN,
    ),
    Fault(
        name="certificate",
        what="The only engine is an external one, with a certificate that nobody has signed.",
        outside=Outside.CERTIFICATE,
        expected=_refused(503, "engine_unreachable", tries=(0, 0), retry_after=1),
    ),
    Fault(
        name="dns",
        what="The only engine is an external one, whose name does not exist.",
        outside=Outside.NAME,
        expected=_refused(503, "engine_unreachable", tries=(0, 0), retry_after=1),
    ),
)

_MANY = (
    Fault(
        name="ten-500s",
        what="The only engine answers 500 to ten requests, one after the other, and is well again.",
        engines=1,
        first=(Script(status=500),) * 10,
        ask=Ask(until_whole=True, stream=False),
        expected=Expected(tries=(11, 11), before=frozenset({500, 503})),
    ),
    Fault(
        name="ten-503s",
        what="The same with 503.",
        engines=1,
        first=(Script(status=503),) * 10,
        ask=Ask(until_whole=True, stream=False),
        expected=Expected(tries=(11, 11), before=frozenset({503})),
    ),
    Fault(
        name="one-sick-engine",
        what="One of two engines answers 503 to everything; 20 requests, one after the other.",
        sick=Script(status=503),
        ask=Ask(times=20, stream=False),
        expected=Expected(tries=(20, 30)),
    ),
    Fault(
        name="prompt-too-long",
        what="Ten prompts that are too long for the model get 400, then comes a short one.",
        engines=1,
        context=400,
        ask=Ask(words=2000, times=10, until_whole=True, stream=False),
        expected=Expected(tries=(1, 11), before=frozenset({400})),
    ),
    Fault(
        name="poison",
        what="Every engine that gets this request dies; there are three.",
        engines=3,
        always=Script(die=True),
        expected=Expected(end=End.REFUSED, tries=(2, 2)),
    ),
)

FAULTS = (*_LEAVING, *_MID_STREAM, *_STATUSES, *_NO_REPLY, *_MANY)
