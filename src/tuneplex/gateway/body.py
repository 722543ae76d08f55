"""The few fields of a request body that the gateway reads; all others are passed on unread."""

from __future__ import annotations

import msgspec

from tuneplex.errors import BadRequest

__all__ = ["Body", "read_body"]

# A fleet's own names are shorter. One that is only repeated in a reply (see `core`) is there in each of its events.
_LONGEST_NAME = 256


class Body(msgspec.Struct):
    """A request body: what the gateway needs to know of it, and all of it as the bytes that came.

    Attributes:
        fields: Every field, undecoded. Of a repeated one the last, which is also the one that was read.
        model: The model that is asked for, if the body names one.
        stream: Whether events are wanted.
        previous_response_id: An earlier response to build on.
    """

    fields: dict[str, msgspec.Raw]
    model: str | None = None
    stream: bool | None = None
    previous_response_id: str | None = None


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str | None)
_flag = msgspec.json.Decoder(bool | None)
_READ = (("model", _text), ("stream", _flag), ("previous_response_id", _text))


def read_body(data: bytes) -> Body:
    """Read a JSON object.

    Raises:
        BadRequest: It is no JSON object, one of the fields has another type, or the model's name is too long.
    """
    try:
        body = Body(_fields.decode(data))
    except msgspec.ValidationError as error:
        raise BadRequest("The request's body must be a JSON object.", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The request's body is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("The request's body is nested too deeply.", code="invalid_json") from error
    for name, decoder in _READ:
        raw = body.fields.get(name)
        if raw is not None:
            setattr(body, name, _read(name, raw, decoder))
    if body.model is not None and len(body.model) > _LONGEST_NAME:
        words = f"model: a name has at most {_LONGEST_NAME} characters."
        raise BadRequest(words, param="model", code="invalid_value")
    return body


def _read(
    name: str, raw: msgspec.Raw, decoder: msgspec.json.Decoder[str | None] | msgspec.json.Decoder[bool | None]
) -> str | bool | None:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"{name}: {error}.", param=name, code="invalid_type") from error
