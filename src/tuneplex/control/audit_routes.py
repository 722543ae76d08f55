"""The admin API's operation on the audit log, and how all others get into it."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tuneplex.control.auditor import Auditor
from tuneplex.control.operations import LOCAL_ACTOR, Call, Noted, Operation
from tuneplex.errors import AuditError, BadRequest, Forbidden, Unavailable
from tuneplex.records.audit import CONTROL, AuditEvent

__all__ = ["audit_operations", "noted_by"]

_READS = frozenset({"GET", "HEAD"})
_RETRY_AFTER_S = 2
_QUIET = "noteRead"  # it is an event itself


def noted_by(auditor: Auditor) -> Noted:
    """What writes each change into the audit log."""

    async def noted(operation: Operation, call: Call, status: int, answer: Any) -> None:  # noqa: ANN401 - its own type
        if operation.method in _READS or operation.name == _QUIET:
            return
        told = operation.tells(call, answer) if operation.tells is not None else {}
        details = {**told, **call.path, **call.query}
        await auditor.acted(call.actor, operation.name, status=status, details=details)

    return noted


def audit_operations(auditor: Auditor | None) -> tuple[Operation, ...]:
    """What can be asked of the audit log."""

    async def note_read(call: Call) -> dict[str, Any]:
        event: AuditEvent = call.body
        if call.actor != LOCAL_ACTOR:
            raise Forbidden("the audit log can only be read on the machine itself", code="only_on_the_machine")
        if auditor is None:
            raise Unavailable("this control writes no audit log", code="no_audit")
        if (event.event, event.source) != ("read", CONTROL):
            raise BadRequest("only that somebody reads it can be noted", param="event")
        try:
            await auditor.note(msgspec.structs.replace(event, seq=0, at=time.time()))
        except AuditError as error:
            raise Unavailable(str(error), code="not_recorded", retry_after_s=_RETRY_AFTER_S) from error
        return {}

    return (
        Operation("POST", "/audit/reads", _QUIET, "Write into the audit log that somebody reads it. Only on the "
                  "machine itself.", note_read, body=AuditEvent, answer=dict[str, Any], errors=(400, 403, 503)),
    )  # fmt: skip
