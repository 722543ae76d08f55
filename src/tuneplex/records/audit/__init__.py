"""The audit log: who reached which model, when; a chain of lines with signatures that nobody can change unseen."""

from tuneplex.records.audit.chain import Head
from tuneplex.records.audit.events import CONTROL, AuditEvent, Detail, EventKind
from tuneplex.records.audit.findings import Finding, Report
from tuneplex.records.audit.keys import PUBLIC_FILE, PublicKey
from tuneplex.records.audit.locked import kept_heads, lock_head
from tuneplex.records.audit.log import AuditLog, checkpoint_due
from tuneplex.records.audit.marks import SignedHead
from tuneplex.records.audit.reading import Picked, Selection, has_log, newest_head, selected
from tuneplex.records.audit.sending import post_head
from tuneplex.records.audit.verify import verify

__all__ = [
    "CONTROL",
    "PUBLIC_FILE",
    "AuditEvent",
    "AuditLog",
    "Detail",
    "EventKind",
    "Finding",
    "Head",
    "Picked",
    "PublicKey",
    "Report",
    "Selection",
    "SignedHead",
    "checkpoint_due",
    "has_log",
    "kept_heads",
    "lock_head",
    "newest_head",
    "post_head",
    "selected",
    "verify",
]
