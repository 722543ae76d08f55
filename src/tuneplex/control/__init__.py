"""The control loop: observe the replicas, decide what should change, act, and tell the gateways."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuneplex.control.admin import admin_app
    from tuneplex.control.auditor import Auditor
    from tuneplex.control.bookkeeper import Bookkeeper
    from tuneplex.control.controller import Controller
    from tuneplex.control.counting import Counting
    from tuneplex.control.deploying import Deploying
    from tuneplex.control.expiry import Expiry
    from tuneplex.control.holds import Holds
    from tuneplex.control.journals import Journals
    from tuneplex.control.leasing import Leasing
    from tuneplex.control.questions import Questions
    from tuneplex.control.recording import Recording
    from tuneplex.control.registry import Registry
    from tuneplex.control.tally import Tally
    from tuneplex.control.tracing import Tracing
    from tuneplex.control.turns import Dividing

__all__ = [
    "Auditor",
    "Bookkeeper",
    "Controller",
    "Counting",
    "Deploying",
    "Dividing",
    "Expiry",
    "Holds",
    "Journals",
    "Leasing",
    "Questions",
    "Recording",
    "Registry",
    "Tally",
    "Tracing",
    "admin_app",
]

_HOMES = {
    "Auditor": "auditor",
    "Bookkeeper": "bookkeeper",
    "Controller": "controller",
    "Counting": "counting",
    "Deploying": "deploying",
    "Dividing": "turns",
    "Expiry": "expiry",
    "Holds": "holds",
    "Journals": "journals",
    "Leasing": "leasing",
    "Recording": "recording",
    "Questions": "questions",
    "Registry": "registry",
    "Tally": "tally",
    "Tracing": "tracing",
    "admin_app": "admin",
}


def __getattr__(name: str) -> object:
    """Import a name when it is asked for: the command line needs `bodies` alone, and should not pay for the rest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
