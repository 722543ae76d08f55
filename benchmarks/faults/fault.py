"""What a fault is: how engines misbehave, what a client asks meanwhile, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from benchmarks.faults.seen import End
from tuneplex.testing import Script
from tuneplex.types import Breaking, GatewaySettings, Timeouts

__all__ = ["SETTINGS", "Ask", "Expected", "Fault", "Leave", "Outside"]

SETTINGS = GatewaySettings(
    timeouts=Timeouts(connect_s=1, first_byte_s=0.8, between_chunks_s=0.8, total_s=8),
    breaking=Breaking(failures=5, open_s=0.3, longest_s=0.6),
)  # short ones, so that a look at all faults takes a minute

_HEALTHY = Script()


class Leave(Enum):
    """When a client leaves; the value is the number of events that it has by then, -1 before the headers."""

    WITHOUT_HEADERS = -1
    WITHOUT_EVENTS = 0
    MIDDLE = 10


class Outside(Enum):
    """An external engine that cannot be reached, in place of all others."""

    CERTIFICATE = "a certificate that nobody has signed"
    NAME = "a name that does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What clients ask.

    Attributes:
        stream: They want events.
        tokens: So many.
        words: The length of their prompt.
        together: So many ask the same at the same time.
        times: So often, one after the other.
        until_whole: And then with a short prompt, on and on, until one gets a whole answer.
        leave: When the client leaves.
        late: It reads nothing but the head until the engine can send no more, or has sent all.
    """

    stream: bool = True
    tokens: int = 40
    words: int = 1
    together: int = 1
    times: int = 1
    until_whole: bool = False
    leave: Leave | None = None
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must come of it in tuneplex.

    Attributes:
        end: Of the last reply, and of all that were asked together.
        status: Of an error before the first byte.
        code: Of an error; empty: any.
        retry_after: The least that the client is told to wait, seconds; 0: it need not be told.
        tries: The least and the most requests that engines may get.
        before: What earlier replies may have been, by status.
    """

    end: End = End.WHOLE
    status: int | None = None
    code: str = ""
    retry_after: int = 0
    tries: tuple[int, int] = (1, 1)
    before: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        name: For `--only`.
        what: One sentence, for people.
        engines: How many there are.
        first: How the first requests are answered, by whichever engine they reach.
        always: How all others are.
        sick: How the first engine answers them instead.
        dead: So many engines are dead before anything is asked.
        drained: After the first events, the engine that sends them is announced to be stopped, and then is.
        outside: There is only this engine.
        context: Of each engine, tokens.
        ask: What is asked meanwhile.
        expected: What must come of it.
    """

    name: str
    what: str
    expected: Expected
    engines: int = 2
    first: tuple[Script, ...] = ()
    always: Script = _HEALTHY
    sick: Script | None = None
    dead: int = 0
    drained: bool = False
    outside: Outside | None = None
    context: int = 8192
    ask: Ask = Ask()
