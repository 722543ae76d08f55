"""What the gateway answers itself, as bytes."""

from __future__ import annotations

import msgspec

from tuneplex.errors import NotFound, Unavailable
from tuneplex.types import FleetView, Model, ReplicaState

__all__ = ["model_card", "model_list", "readiness"]


class _Card(msgspec.Struct):
    """A model as OpenAI's API shows it, with `parent` as vLLM adds it."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None


def model_list(view: FleetView) -> bytes:
    """The base, the adapters and the aliases."""
    cards = [_card(name, model) for name, model in view.models.items()]
    cards += [_card(alias, view.models[name]) for alias, name in view.aliases.items() if name in view.models]
    return msgspec.json.encode({"object": "list", "data": cards})


def model_card(view: FleetView, name: str) -> bytes:
    """One of them.

    Raises:
        NotFound: There is no such model.
    """
    model = view.model(name)
    if model is None:
        raise unknown_model(name)
    return msgspec.json.encode(_card(name, model))


def readiness(view: FleetView) -> bytes:
    """What `/ready` says while a request can be answered.

    Raises:
        Unavailable: No replica is ready.
    """
    ready = sum(replica.state is ReplicaState.READY for replica in view.replicas)
    if not ready:
        raise Unavailable("No engine is ready yet.", code="not_ready", retry_after_s=1)
    return msgspec.json.encode({"status": "ready", "replicas": ready, "models": len(view.models)})


def unknown_model(name: str) -> NotFound:
    """The error for a model that does not exist, or not for this key."""
    return NotFound(f"The model `{name}` does not exist.", param="model", code="model_not_found")


def _card(name: str, model: Model) -> _Card:
    return _Card(name, "model", model.created, "tuneplex", model.name, model.parent)
