"""The pages: what the gateway answers without an engine, some of it with control's help."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from tuneplex import metrics
from tuneplex.errors import ApiError
from tuneplex.gateway.access import preflight_headers
from tuneplex.gateway.admin import AdminSource, admin_call, ask_control, reply_lines
from tuneplex.gateway.choosing import known_model
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.openapi import page as description
from tuneplex.gateway.pages import model_card, model_list, readiness
from tuneplex.gateway.principals import Principals
from tuneplex.gateway.routes import Page, Target
from tuneplex.identity import Grant, Principal
from tuneplex.log import get_logger
from tuneplex.types import FleetView, GatewayReport

__all__ = ["Host", "MetricsSource", "Site"]

_log = get_logger(__name__)

MetricsSource = Callable[[], Awaitable[bytes]]


class Host(Protocol):
    """Whose pages they are.

    Attributes:
        view: The fleet.
    """

    view: FleetView

    def callers(self) -> Principals:
        """Everybody who may call.

        Raises:
            Unavailable: Nobody knows yet.
        """

    def report(self) -> GatewayReport:
        """Its own numbers."""

    def count(self, exchange: Exchange, status: int) -> None:
        """Count a reply that no engine was asked for."""

    def refuse(self, exchange: Exchange, error: ApiError) -> None:
        """Answer with an error."""

    def failed(self, exchange: Exchange) -> None:
        """Answer a request at which we have failed ourselves."""


class Site:
    """The pages of one gateway.

    Args:
        host: Whose they are.
        metrics_source: Gives the page for `/metrics` with all gateways and replicas in it; the host's own numbers are
            shown when there is no source or it fails.
        admin: Answers what is sent on to control.

    Attributes:
        tasks: What is being answered with control's help.
    """

    def __init__(self, host: Host, metrics_source: MetricsSource | None, admin: AdminSource | None) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._host = host
        self._metrics_source = metrics_source
        self._admin = admin
        self._lists: dict[Grant, bytes] = {}  # made when they are first asked for

    def forget(self) -> None:
        """Fleet or keys are other ones now."""
        self._lists = {}

    def show(self, exchange: Exchange, target: Target, principal: Principal) -> None:
        """Answer with a page, now or later.

        Raises:
            ApiError: It cannot be shown.
        """
        if target.page is Page.METRICS:
            self._later(exchange, self._show_metrics(exchange))
        elif target.page is Page.ADMIN:
            self._later(exchange, self._send_on(exchange, principal))
        else:
            exchange.reply(200, self._page(target, principal))
            self._host.count(exchange, 200)

    def preflight(self, exchange: Exchange) -> None:
        """Tell a browser what a page of another origin may ask."""
        requested = exchange.headers.get(b"access-control-request-headers", b"")
        allowed = b"access-control-allow-origin" in exchange.extra
        exchange.reply(204, b"", headers=preflight_headers(requested) if allowed else b"")

    def _page(self, target: Target, principal: Principal) -> bytes:
        view = self._host.view
        if target.deployment is not None:
            known_model(view, principal.grant, target.deployment)
        match target.page:
            case Page.MODELS:
                return self._list(principal.grant)
            case Page.MODEL:
                return model_card(view, principal.grant, target.model)
            case Page.READY:
                self._host.callers()  # without keys nothing can be answered, however ready the engines are
                return readiness(view)
            case Page.OPENAPI:
                return description()
        return b'{"status":"ok"}'

    def _list(self, grant: Grant) -> bytes:
        page = self._lists.get(grant)
        if page is None:
            page = self._lists[grant] = model_list(self._host.view, grant)
        return page

    async def _send_on(self, exchange: Exchange, principal: Principal) -> None:
        reply = await ask_control(self._admin, admin_call(exchange, principal))
        if not exchange.gone:
            kind = reply.headers.get("content-type", "application/json").encode("latin-1")
            exchange.reply(reply.status, reply.body, kind, reply_lines(reply))
            self._host.count(exchange, reply.status)

    async def _show_metrics(self, exchange: Exchange) -> None:
        page = await self._all_metrics()
        if not exchange.gone:
            exchange.reply(200, page, metrics.CONTENT_TYPE.encode())
            self._host.count(exchange, 200)

    async def _all_metrics(self) -> bytes:
        if self._metrics_source is not None:
            try:
                return await self._metrics_source()
            except (OSError, TimeoutError, ValueError) as error:
                _log.warning("no metrics from control", error=error)
        return metrics.render([self._host.report()])

    def _later(self, exchange: Exchange, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._finish(exchange, work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _finish(self, exchange: Exchange, work: Awaitable[None]) -> None:
        try:
            await work
        except ApiError as error:
            self._host.refuse(exchange, error)
        except Exception:  # noqa: BLE001 - the last resort: a defect of ours must still be an answer
            self._host.failed(exchange)
