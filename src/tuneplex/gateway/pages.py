"""What the gateway answers itself, as bytes."""

from __future__ import annotations

import msgspec

from tuneplex.errors import Unavailable
from tuneplex.gateway.choosing import known_model
from tuneplex.gateway.forms import ModelCard, ModelList, Readiness
from tuneplex.identity import Grant
from tuneplex.policy import permits
from tuneplex.types import FleetView, Model, ReplicaState

__all__ = ["model_card", "model_list", "readiness"]


def model_list(view: FleetView, grant: Grant) -> bytes:
    """The base, the adapters and the aliases, as far as they may be called."""
    callable_ones = {name: model for name, model in view.models.items() if permits(grant, model)}
    cards = [_card(name, model) for name, model in callable_ones.items()]
    cards += [_card(alias, callable_ones[name]) for alias, name in view.aliases.items() if name in callable_ones]
    return msgspec.json.encode(ModelList("list", cards))


def model_card(view: FleetView, grant: Grant, name: str) -> bytes:
    """One of them.

    Raises:
        NotFound: See `known_model`.
    """
    return msgspec.json.encode(_card(name, known_model(view, grant, name)))


def readiness(view: FleetView) -> bytes:
    """What `/ready` says while a request can be answered.

    Raises:
        Unavailable: No replica is ready.
    """
    ready = sum(replica.state is ReplicaState.READY for replica in view.replicas)
    if not ready:
        raise Unavailable("No engine is ready yet.", code="not_ready", retry_after_s=1)
    return msgspec.json.encode(Readiness("ready", ready, len(view.models)))


def _card(name: str, model: Model) -> ModelCard:
    return ModelCard(name, "model", model.created, "tuneplex", model.name, model.parent)
