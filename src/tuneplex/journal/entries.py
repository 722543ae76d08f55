"""What a journal says: one frozen value for each kind of entry, written as a msgpack array.

A later version may add fields at the end of an entry, with defaults; readers pass over what they do not know. Times are
Unix times in seconds. No entry holds anything of a prompt or a reply.
"""

from __future__ import annotations

import msgspec

__all__ = ["Began", "Closed", "Entered", "Entry", "Foreign", "Lost", "Opened", "Progress", "Refused"]


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="b"):
    """The first entry of each file.

    Attributes:
        journal: The journal's name, which no other one has ever had.
        fleet: Whose requests these are.
        at: When the file was begun.
    """

    journal: str
    fleet: str
    at: float


class Entered(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="e"):
    """A request is let in whose tenant wants that to be on the disk before anything of it is done.

    Attributes:
        number: Of the request, in this journal.
        at: When.
        request_id: As its client knows it; clients may choose it, so it need not be unique.
        tenant: Who pays.
        key_id: The public id of the key.
        model: The name of the model.
        version: Which version of it.
        route: By which route.
        carried: It has entered in an earlier file, and is repeated so that each file can be read alone.
    """

    number: int
    at: float
    request_id: str
    tenant: str
    key_id: str
    model: str
    version: str
    route: str
    carried: bool = False


class Opened(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """An attempt at a request is about to be sent to a replica.

    Attributes:
        number: Of the request, in this journal.
        attempt: Of that request, from 1.
        at: When.
        arrived: When the request came.
        request_id: As its client knows it.
        tenant: Who pays.
        key_id: The public id of the key.
        model: The name of the model.
        version: Which version of it.
        route: By which route.
        stream: Whether events are wanted.
        pool: The replica's pool.
        replica: Where it goes.
        engine: Which start of that replica.
        prompt: About how many tokens its prompt has.
        waited_s: How long it has waited in the gateway.
        session: What it has in common with other requests of the same conversation or user, as a keyed hash; or empty.
        trace: The `traceparent` that it came with, or empty.
        choices: How many replies are made of each prompt, which the engine reads as often.
        carried: It was opened in an earlier file, and is repeated so that each file can be read alone.
    """

    number: int
    attempt: int
    at: float
    arrived: float
    request_id: str
    tenant: str
    key_id: str
    model: str
    version: str
    route: str
    stream: bool
    pool: str
    replica: str
    engine: str
    prompt: int = 0
    waited_s: float = 0.0
    session: str = ""
    trace: str = ""
    choices: int = 1
    carried: bool = False


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="p"):
    """How far the reply to a request has come.

    Attributes:
        number: Of the request.
        at: When.
        prompt: Tokens of its prompt.
        completion: Tokens of its reply so far.
    """

    number: int
    at: float
    prompt: int
    completion: int


class Closed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="c"):
    """An attempt is over, or the request with all that is left of them.

    Attributes:
        number: Of the request.
        attempt: Which attempt; 0 stands for the request.
        at: When.
        outcome: How it has ended.
        status: Of the reply to the client, 0 if there was none.
        prompt: Tokens of the prompt.
        cached: Those of them that the engine had already.
        completion: Tokens of the reply, of all attempts up to now together.
        exact: The tokens are as the engine says.
        first_token_s: From the request to the first event of its stream.
        sent: Bytes of the reply.
    """

    number: int
    attempt: int
    at: float
    outcome: str
    status: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    exact: bool = False
    first_token_s: float | None = None
    sent: int = 0


class Refused(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="r"):
    """A request has got no attempt: it was refused, or its client has left before.

    Attributes:
        at: When.
        arrived: When it came.
        request_id: As its client knows it.
        tenant: Who would have paid; empty where nobody knows.
        key_id: The public id of the key, or empty.
        model: Which model, or empty.
        version: Which version of it, or empty.
        route: By which route, or empty.
        status: Of the reply; 499 if the client has left.
        code: Of the error.
        number: Of the request, if it has entered before; 0 otherwise.
        count: How many such requests this stands for: those of unknown callers are put together.
        stream: Whether events were wanted.
        waited_s: How long it had waited.
    """

    at: float
    arrived: float
    request_id: str
    tenant: str
    key_id: str
    model: str
    version: str
    route: str
    status: int
    code: str
    number: int = 0
    count: int = 1
    stream: bool = False
    waited_s: float = 0.0


class Lost(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="l"):
    """Entries could not be written.

    Attributes:
        since: When the first of them should have been.
        at: When the last of them should have been.
        count: How many.
    """

    since: float
    at: float
    count: int


class Foreign(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="?"):
    """An entry of a later version, of which this one knows nothing; it is never written."""


Entry = Began | Entered | Opened | Progress | Closed | Refused | Lost | Foreign
