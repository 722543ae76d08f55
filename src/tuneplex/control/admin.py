"""The admin API: on a Unix socket that only this user can open, and by the gateways for keys that may."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec
from starlette.applications import Starlette

from tuneplex import __version__
from tuneplex.control.audit_routes import audit_operations, noted_by
from tuneplex.control.bodies import Amount, LimitUse
from tuneplex.control.controller import Controller
from tuneplex.control.deploying import Deploying
from tuneplex.control.identity_routes import identity_operations
from tuneplex.control.leasing import Leasing
from tuneplex.control.openapi import document
from tuneplex.control.operations import LOCAL_ACTOR, Call, Conflict, Operation, Query, handlers, not_kept, routes
from tuneplex.control.recording import Recording
from tuneplex.control.registry import Registry
from tuneplex.control.replica_routes import replica_operations
from tuneplex.control.request_routes import request_operations
from tuneplex.control.telling import tells_apply
from tuneplex.control.usage_routes import usage_operations
from tuneplex.control.version_routes import version_operations
from tuneplex.engines.driver import KINDS
from tuneplex.errors import BadRequest, Forbidden
from tuneplex.identity import Limits
from tuneplex.metrics import CONTENT_TYPE
from tuneplex.policy.changes import changes
from tuneplex.types import Change, FleetSpec, PoolSpec, Status
from tuneplex.units import MOST_MONEY

__all__ = ["admin_app", "admin_operations"]


_LEAST_KEPT_S = 86400
_LEAST_JOURNAL = 64 * 1024 * 1024
_ALL_PERCENT = 100


def admin_app(
    controller: Controller,
    registry: Registry,
    leasing: Leasing,
    save: Callable[[FleetSpec], None],
    records: Recording | None = None,
    *,
    deploying: Deploying | None = None,
) -> Starlette:
    """The admin API; `GET /openapi.json` describes it.

    Args:
        controller: What it tells of the fleet, and what it changes.
        registry: Tenants and keys.
        leasing: What is used of limits.
        save: Keeps an applied spec for the next start.
        records: Usage and the audit log.
        deploying: The versions of adapters.
    """
    app = Starlette(
        routes=routes(
            admin_operations(controller, registry, leasing, save, records, deploying=deploying),
            None if records is None else noted_by(records.auditor),
        ),
        exception_handlers=handlers(),
    )
    app.router.redirect_slashes = False  # behind a gateway the place would be another one: a wrong path is just wrong
    return app


def admin_operations(
    controller: Controller,
    registry: Registry,
    leasing: Leasing,
    save: Callable[[FleetSpec], None],
    records: Recording | None = None,
    *,
    deploying: Deploying | None = None,
) -> tuple[Operation, ...]:
    """All operations of the admin API; see `admin_app` for the arguments."""

    async def limits(_call: Call) -> tuple[LimitUse, ...]:
        return leasing.uses()

    asks = registry if records is None else records.questions
    operations = (
        *_fleet_operations(controller, registry, leasing, save, _trouble(controller, records), deploying=deploying),
        *([] if deploying is None else version_operations(controller, deploying.catalog, deploying.rollouts)),
        *replica_operations(controller),
        *request_operations(asks, lambda: controller.spec.name),
        *usage_operations(controller, asks),
        *identity_operations(registry, lambda: _currency(controller.spec)),
        *audit_operations(None if records is None else records.auditor),
        Operation("GET", "/limits", "listLimits", "All tenants, keys and models that have limits, and what they have "
                  "used of them.", limits, answer=tuple[LimitUse, ...], errors=(400,)),
    )  # fmt: skip

    async def described(_call: Call) -> dict[str, Any]:
        return document((*operations, itself), __version__)

    itself = Operation(
        "GET", "/openapi.json", "describe", "This document.", described, answer=dict[str, Any], errors=(400,)
    )
    return (*operations, itself)


def _trouble(controller: Controller, records: Recording | None) -> Callable[[], str]:
    """What records lack, in words for people."""

    def unrecorded() -> str:
        gateways = {report.name: report.unrecorded for report in controller.publisher.reports if report.unrecorded}
        words = [f"{name} cannot write its journal: {why}" for name, why in gateways.items()]
        return "; ".join([*words, *filter(None, [records.journals.trouble if records is not None else ""])])

    return unrecorded


def _fleet_operations(
    controller: Controller,
    registry: Registry,
    leasing: Leasing,
    save: Callable[[FleetSpec], None],
    unrecorded: Callable[[], str],
    *,
    deploying: Deploying | None,
) -> tuple[Operation, ...]:
    async def status(_call: Call) -> Status:
        return msgspec.structs.replace(controller.status(), store=registry.trouble(time.time()), records=unrecorded())

    async def metrics(_call: Call) -> bytes:
        return controller.metrics()

    async def apply(call: Call) -> tuple[Change, ...]:
        spec: FleetSpec = call.body
        _check(spec, controller.launcher_names)
        if call.actor != LOCAL_ACTOR:
            _refuse_programs(controller.spec, spec)
        found = changes(controller.spec, spec if deploying is None else deploying.catalog.fleet_of(spec))
        _refuse_other_money(controller.spec, spec, leasing.limits)
        if not call.flag("dry_run"):
            _refuse_restarts(found)
            try:
                save(spec)
            except OSError as error:
                raise not_kept(error) from error
            (controller if deploying is None else deploying.catalog).apply(spec)
        return found

    dry_run = Query("dry_run", "1: only tell what would change.", flag=True)
    return (
        Operation("GET", "/status", "getStatus", "What the fleet looks like now.", status, answer=Status,
                  errors=(400,)),
        Operation("GET", "/metrics", "getMetrics", "The gateways' numbers added up, and the engines' figures, for "
                  "Prometheus.", metrics, errors=(400,), media=CONTENT_TYPE),
        Operation("POST", "/apply", "apply", "Bring the fleet to this description. If one difference needs a restart "
                  "of the fleet, nothing is changed at all. A key cannot change which programs run, nor how.", apply,
                  body=FleetSpec, answer=tuple[Change, ...],
                  errors=(400, 403, 409, 503), query=(dry_run,), tells=tells_apply),
    )  # fmt: skip


def _check(spec: FleetSpec, launchers: Collection[str]) -> None:
    for at, pool in enumerate(spec.pools):
        if pool.engine not in KINDS or pool.launcher not in launchers:
            words = f"pool {pool.name}: no engine {pool.engine} by the launcher {pool.launcher} here"
            raise BadRequest(words, param=f"pools[{at}]")
    for name, limits in spec.limits.items():
        try:
            msgspec.convert(msgspec.structs.asdict(limits), _ModelLimits)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the limits of model {name} are none: {error}", param=f"limits.{name}") from error
        if limits.money_per_month is not None and name not in spec.prices:
            words = f"the limits of model {name} are in money, and it has no price"
            raise BadRequest(words, param=f"limits.{name}", code="no_prices")

    _check_records(spec)
    dear = [name for name, price in spec.prices.items() if min(msgspec.structs.astuple(price)) < 0]
    if dear:
        raise BadRequest(f"the price of model {dear[0]} is below nothing", param=f"prices.{dear[0]}")


def _check_records(spec: FleetSpec) -> None:
    """What is kept, promised and told of requests."""
    for name, objective in {"": spec.objective, **spec.objectives}.items():
        if not 0 < objective.availability < _ALL_PERCENT:
            where = f"objectives.{name}" if name else "objective"
            raise BadRequest("an availability is above 0 and below 100 percent", param=where)
    if spec.records.keep_s < _LEAST_KEPT_S:
        raise BadRequest("requests are kept for a day at least", param="records.keep_s")
    if spec.gateway.journal < _LEAST_JOURNAL:
        raise BadRequest("a journal holds 64 MiB at least", param="gateway.journal")
    if not 0 <= spec.telemetry.sample <= 1:
        raise BadRequest("a share is from 0 to 1", param="telemetry.sample")


class _ModelLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests_per_minute: Amount | None
    tokens_per_minute: Amount | None
    tokens_per_day: Amount | None
    concurrent: Amount | None
    money_per_month: Annotated[int, msgspec.Meta(ge=1, le=MOST_MONEY)] | None
    cut_streams: bool


def _currency(spec: FleetSpec) -> str:
    """Of the fleet's prices; empty while nothing has a price."""
    return spec.gateway.currency if spec.prices else ""


def _refuse_other_money(old: FleetSpec, new: FleetSpec, limits: Mapping[str, Limits]) -> None:
    """Limits of tenants and keys are numbers in the old currency: in another one they would mean something else."""
    if _currency(old) in {"", _currency(new)}:
        return
    bound = [name for name, one in limits.items() if one.money_per_month is not None and not name.startswith("model ")]
    if bound:
        other = f"prices in {_currency(new)}" if _currency(new) else "no prices"
        raise Conflict(f"with {other}, limits in {_currency(old)} mean nothing; take them away first: {bound[0]}"
                       f"{f' and {len(bound) - 1} more' if len(bound) > 1 else ''}")  # fmt: skip


def _refuse_programs(old: FleetSpec, new: FleetSpec) -> None:
    """A key that administers a fleet must not become a way to run programs on its machine, or to lead prompts away."""
    before = {pool.name: pool for pool in old.pools}
    for at, pool in enumerate(new.pools):
        known = before.get(pool.name)
        if known is None or _program(known) != _program(pool):
            words = f"pool {pool.name}: what its engines are can only be changed on the machine itself"
            raise Forbidden(words, param=f"pools[{at}]", code="only_on_the_machine")
    if new.telemetry.traces not in {"", old.telemetry.traces}:
        words = "where traces go can only be changed on the machine itself"
        raise Forbidden(words, param="telemetry.traces", code="only_on_the_machine")


def _program(pool: PoolSpec) -> tuple[object, ...]:
    return pool.launcher, pool.engine, pool.python, pool.engine_args, pool.env, pool.urls, pool.secret


def _refuse_restarts(found: tuple[Change, ...]) -> None:
    stuck = [f"{change.what} ({change.detail})" for change in found if change.how == "restart"]
    if stuck:
        raise Conflict(f"needs tuneplex down and tuneplex up: {', '.join(stuck)}; nothing was changed")
