"""vLLM's API server: OpenAI's API, adapters are models of their own."""

from __future__ import annotations

import msgspec

from tuneplex.engines.openai.dialect import OpenAIDialect
from tuneplex.engines.salt import derive
from tuneplex.engines.wire import with_fields
from tuneplex.errors import BadRequest

__all__ = ["VllmDialect"]

_SALT = "cache_salt"
_text = msgspec.json.Decoder(str | None)


class VllmDialect(OpenAIDialect):
    """vLLM speaks OpenAI's API so closely that only the salt differs; its error shapes are known to `wire`."""

    takes_options: bool | None = True
    tells_always = True
    continues = True

    def encode(self, fields: dict[str, msgspec.Raw], *, name: str, salt: str) -> bytes:
        """The client's own fields with another `model` and, if there is a salt, with another `cache_salt`.

        A client's own salt makes a further one below the tenant's: it can keep prompts apart, and never join them.
        """
        if not salt:
            return with_fields(fields, model=name)
        own = fields.get(_SALT)
        return with_fields(fields, model=name, cache_salt=salt if own is None else _below(salt, own))


def _below(salt: str, own: msgspec.Raw) -> str:
    try:
        text = _text.decode(own)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = ""
    if text == "":
        words = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise BadRequest(words, param=_SALT, code="invalid_type")
    return salt if text is None else derive(salt, text)
