"""Which version of a model a request gets: the one that is in use, one that its client names, or one that is tried."""

from __future__ import annotations

import msgspec

from tuneplex.errors import NotFound
from tuneplex.gateway.asked import Asked
from tuneplex.identity import Grant
from tuneplex.policy import permits, takes_new
from tuneplex.types import FleetView, Model

__all__ = ["as_it_is_now", "known_model", "tried"]

_BY_USER = "user"
_NOBODY = frozenset({b"", b"null"})


def known_model(view: FleetView, grant: Grant, name: str) -> Model:
    """The model that a name, an alias or the id of a version means.

    Who names a version must be allowed to call the adapter, and its id must be among what the key allows, too.

    Raises:
        NotFound: There is no such model, or it may not be called: nobody can tell one from the other.
    """
    model = view.model(name)
    if model is None or not permits(grant, model) or not _may_pin(view, grant, model, name):
        raise NotFound(f"The model `{name}` does not exist.", param="model", code="model_not_found")
    return model


def tried(model: Model, asked: Asked) -> Model:
    """The model with the version that is being tried, if this request is among those that get it."""
    trial = model.trial
    if trial is None or not takes_new(_subject(asked, trial.by), trial.salt, trial.share):
        return model
    return msgspec.structs.replace(model, version=trial.version)


def as_it_is_now(view: FleetView, asked: Asked) -> Model:
    """The model of a request that nothing was sent of yet, after the fleet or the keys have changed.

    Raises:
        NotFound: As `known_model`.
    """
    if asked.pinned:
        return known_model(view, asked.principal.grant, asked.model.version)
    return tried(known_model(view, asked.principal.grant, asked.model.name), asked)


def _may_pin(view: FleetView, grant: Grant, model: Model, name: str) -> bool:
    return name not in view.versions or permits(grant, msgspec.structs.replace(model, name=name))


def _subject(asked: Asked, by: str) -> str:
    """What the requests have in common that get the same version."""
    if by == _BY_USER:
        user = bytes(asked.fields.get(_BY_USER) or b"").strip()
        return asked.exchange.request_id.decode() if user in _NOBODY else user.decode(errors="replace")
    return asked.principal.key_id if by == "key" else asked.exchange.request_id.decode()
