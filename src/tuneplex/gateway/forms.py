"""What requests and replies look like, for the OpenAPI document: what the gateway itself, or every engine, sees to.

All other fields of a request go to the engine unread, so no schema here forbids any.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tuneplex.types import Route

__all__ = ["REPLIES", "REPLY_HEADERS", "REQUEST_HEADERS", "Health", "ModelCard", "ModelList", "Readiness", "request"]

Schema = dict[str, Any]


class Health(msgspec.Struct, frozen=True):
    """The gateway process answers."""

    status: str


class Readiness(msgspec.Struct, frozen=True):
    """A request can be answered.

    Attributes:
        status: `ready`.
        replicas: How many engines are.
        models: How many models the fleet has.
    """

    status: str
    replicas: int
    models: int


class ModelCard(msgspec.Struct, frozen=True):
    """A model as OpenAI's API shows it, with `parent` as vLLM adds it.

    Attributes:
        id: What requests call it.
        object: `model`.
        created: Unix time.
        owned_by: `tuneplex`.
        root: What it is called where `id` is an alias.
        parent: The base that an adapter belongs to.
    """

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None


class ModelList(msgspec.Struct, frozen=True):
    """The base, the adapters and the aliases that the key may call."""

    object: str
    data: list[ModelCard]


_MODEL = "The base's name, an adapter's name or an alias."
_REPEATED = "Only repeated in the reply; the URL says the model."
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_TEXT_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array"}]}
_STREAM = {"type": ["boolean", "null"], "description": "Whether the reply comes as server-sent events."}
_OPTIONS = {
    "type": ["object", "null"],
    "description": "With `include_usage` the last event before `[DONE]` tells the tokens.",
}
_GENERATING = {"stream": _STREAM, "stream_options": _OPTIONS}

# The field that is required comes first.
_FIELDS: dict[Route, Schema] = {
    Route.CHAT: {"messages": _OBJECTS | {"description": "The conversation."}, **_GENERATING},
    Route.COMPLETIONS: {
        "prompt": _TEXT_OR_LIST | {"description": "A text, tokens, or several of them."},
        **_GENERATING,
    },
    Route.RESPONSES: {
        "input": {"anyOf": [{"type": "string"}, _OBJECTS], "description": "A text, or a list of items."},
        "stream": _STREAM,
        "previous_response_id": {
            "type": "null",
            "description": "Nothing is stored, so there is none: send the whole conversation in `input`.",
        },
    },
    Route.EMBEDDINGS: {"input": _TEXT_OR_LIST | {"description": "A text, tokens, or several of them."}},
}


def request(route: Route, *, deployed: bool) -> Schema:
    """The schema of a request's body.

    Args:
        route: Which.
        deployed: Whether the URL says the model.
    """
    fields = _FIELDS[route]
    model: Schema = {"maxLength": 256, "type": "string", "minLength": 1, "description": _MODEL}
    if deployed:
        model = {"maxLength": 256, "type": ["string", "null"], "description": _REPEATED}
    required = [next(iter(fields))] if deployed else ["model", next(iter(fields))]
    return {"type": "object", "properties": {"model": model, **fields}, "required": required}


def _reply(**fields: Schema) -> Schema:
    return {"type": "object", "properties": {"model": {"type": "string"}, **fields}, "required": [*fields, "model"]}


_KIND = {"type": "string"}

REPLIES: dict[Route, Schema] = {
    Route.CHAT: _reply(object=_KIND, choices=_OBJECTS),
    Route.COMPLETIONS: _reply(object=_KIND, choices=_OBJECTS),
    Route.RESPONSES: _reply(object=_KIND, output=_OBJECTS),
    Route.EMBEDDINGS: _reply(object=_KIND, data=_OBJECTS),
}

_TEXT: Schema = {"type": "string"}
_SECONDS: Schema = {"type": "integer", "minimum": 0}
_KEY: Schema = {"type": "string", "minLength": 1, "maxLength": 255}

# name: schema, and what it means
REQUEST_HEADERS: dict[str, tuple[Schema, str]] = {
    "x-request-id": (_TEXT, "Kept, and repeated in the reply, if it is up to 128 letters, digits and `._:-`."),
    "x-tuneplex-deadline": (
        _TEXT,
        "How long the request may take, from its arrival to the end of its reply: `30s`, `1500ms` or `30`.",
    ),
    "idempotency-key": (
        _KEY,
        "The same one when a request is sent again: it gets the first one's reply and costs nothing.",
    ),
    "x-tuneplex-priority": (_TEXT, "Among the tenant's own requests: `high`, `normal` or `low`."),
    "x-tuneplex-why": (
        _TEXT,
        "`1`: tell what has become of the request, in a header or in a last comment.",
    ),
}
REPLY_HEADERS: dict[str, tuple[Schema, str]] = {
    "x-request-id": (_TEXT, "The client's own, or one that was made."),
    "retry-after": (_SECONDS, "Seconds after which trying again makes sense."),
    "x-should-retry": (_TEXT, "`false` where trying again is in vain."),
    "allow": (_TEXT, "The methods that the path takes."),
    "www-authenticate": (_TEXT, "`Bearer`: a key is needed."),
    "idempotent-replayed": (_TEXT, "`true`: this is the reply to an earlier request with the same key."),
    "x-tuneplex-original-request-id": (_TEXT, "That request's own `x-request-id`."),
    "x-tuneplex-why": (_TEXT, "What has become of the request, as JSON, if it asked for that."),
    "x-tuneplex-waited": (_TEXT, "Seconds that the request has waited, if it had to before its reply began."),
    "x-tuneplex-queue-position": (_SECONDS, "Where a stream stood that began while it was waiting."),
    "x-tuneplex-estimated-wait": (_SECONDS, "Seconds that it would have to wait then, if that was known."),
    **{
        f"x-ratelimit-{number}-{what}": (_TEXT, f"Of the limit on {what} a minute, if there is one: {words}.")
        for what in ("requests", "tokens")
        for number, words in (
            ("limit", "what is allowed"), ("remaining", "what is left"), ("reset", "when all of it is left again")
        )
    },
}  # fmt: skip
