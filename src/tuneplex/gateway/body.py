"""The few fields of a request body that the gateway reads; all others are passed on unread."""

from __future__ import annotations

import re

import msgspec

from tuneplex.errors import BadRequest

__all__ = ["Fields", "read_fields"]

_PATH = re.compile(r" - at `\$\.(\w+)`")


class Fields(msgspec.Struct):
    """What the gateway needs to know."""

    model: str | None = None
    stream: bool | None = None
    previous_response_id: str | None = None


_decoder = msgspec.json.Decoder(Fields)


def read_fields(body: bytes) -> Fields:
    """Read the fields from a JSON object.

    Raises:
        BadRequest: It is no JSON object, or one of the fields has another type.
    """
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _PATH.search(text)
        if at is None:
            raise BadRequest("The request's body must be a JSON object.", code="invalid_json") from error
        raise BadRequest(f"{at[1]}: {text[: at.start()]}.", param=at[1], code="invalid_type") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The request's body is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("The request's body is nested too deeply.", code="invalid_json") from error
