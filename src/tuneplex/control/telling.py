"""What the audit log is told of a change besides its path: names and ids, never a secret and never a whole body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tuneplex.control.bodies import KeyWish, NewKey, TenantWish
from tuneplex.control.operations import Call
from tuneplex.types import Change, FleetSpec

__all__ = ["tells_apply", "tells_fields", "tells_key", "tells_tenant"]

_MOST_CHANGES = 20


def tells_tenant(call: Call, _answer: Any) -> dict[str, str]:  # noqa: ANN401 - the operation's own type
    """Which tenant was wished for."""
    wish: TenantWish = call.body
    return {"tenant": wish.name}


def tells_fields(call: Call, _answer: Any) -> dict[str, str]:  # noqa: ANN401 - the operation's own type
    """The names of the fields that were to change."""
    given = [name for name in call.body.__struct_fields__ if getattr(call.body, name) is not msgspec.UNSET]
    return {"changed": ",".join(given)}


def tells_key(call: Call, answer: Any) -> dict[str, str]:  # noqa: ANN401 - the operation's own type
    """Whose key it is, and its public id where it was made."""
    told = {"tenant": call.body.tenant, "label": call.body.label} if isinstance(call.body, KeyWish) else {}
    if isinstance(answer, NewKey):
        told |= {"tenant": answer.key.tenant, "label": answer.key.label, "key": answer.key.id}
    return told


def tells_apply(call: Call, answer: Any) -> dict[str, str]:  # noqa: ANN401 - the operation's own type
    """What is different."""
    spec: FleetSpec = call.body
    found: Sequence[Change] = answer or ()
    more = f",and {len(found) - _MOST_CHANGES} more" if len(found) > _MOST_CHANGES else ""
    return {"fleet": spec.name, "changed": ",".join(change.what for change in found[:_MOST_CHANGES]) + more}
