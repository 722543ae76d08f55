"""The client of a running fleet's admin API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2
import msgspec

from tuneplex.control.bodies import (
    KeyChange,
    KeyInfo,
    KeyRotation,
    KeyWish,
    LimitUse,
    NewKey,
    TenantChange,
    TenantInfo,
    TenantWish,
)
from tuneplex.control.usage_bodies import EngineUse, UsageReport
from tuneplex.control.version_bodies import AdapterInfo, ProbeWish, RolloutWish, VersionWish
from tuneplex.errors import StateError, StoreDown, TuneplexError, UserError
from tuneplex.journal import Finished
from tuneplex.releases import AdapterEvent, Probing
from tuneplex.types import Change, FleetSpec, ReplicaStatus, Status

__all__ = ["Admin"]

_TIMEOUT_S = 10.0
_APPLY_S = 30.0  # a large fleet has to be read and written
_LONG_S = 30.0  # much may have to be added up
_PROBE_S = 300.0  # a busy engine reads them one after the other
_STORE_DOWN = "store_down"
_UNKNOWN_TENANT = "unknown_tenant"
_FIRST_TENANT = "`tuneplex tenants list` shows what there is; `tuneplex tenants create NAME` makes one"
_REPLICA_HINTS = {"last_ready_replica": "--force does it all the same"}
_OTHER_KEY = "`tuneplex keys list --all` shows their ids"


class Admin:
    """Speaks to control over the admin socket.

    Args:
        socket: The path of `admin.sock`.
    """

    def __init__(self, socket: Path) -> None:
        # Loading the system's certificates takes 40 ms, and a Unix socket needs none.
        transport = httpx2.HTTPTransport(uds=str(socket), verify=False)
        self._client = httpx2.Client(transport=transport, base_url="http://control", timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def status(self) -> Status:
        """What the fleet looks like now.

        Raises:
            StateError: Control does not answer.
        """
        return msgspec.json.decode(self._ask("GET", "/status"), type=Status)

    def apply(self, spec: FleetSpec, *, dry_run: bool) -> tuple[Change, ...]:
        """Bring the fleet to `spec`, or only tell what would change.

        Raises:
            StateError: Control does not answer.
            TuneplexError: It refused; the message is its own.
        """
        query = {"dry_run": "1"} if dry_run else {}
        reply = self._ask(
            "POST",
            "/apply",
            params=query,
            content=msgspec.json.encode(spec),
            timeout=_TIMEOUT_S if dry_run else _APPLY_S,
        )
        return msgspec.json.decode(reply, type=tuple[Change, ...])

    def drain(self, name: str, *, now: bool, force: bool) -> ReplicaStatus:
        """Give a replica no new requests; with `now` its streams go elsewhere at once, `force` takes the last one.

        Raises:
            UserError: There is none, or something stands against it.
            StateError: Control does not answer.
        """
        return self._replica(name, "drain", now=now, force=force)

    def restart(self, name: str, *, now: bool, force: bool) -> ReplicaStatus:
        """Drain a replica and start it again; see `drain`."""
        return self._replica(name, "restart", now=now, force=force)

    def resume(self, name: str) -> ReplicaStatus:
        """Give a replica requests again; see `drain`."""
        return self._replica(name, "resume")

    def _replica(self, name: str, verb: str, **flags: bool) -> ReplicaStatus:
        query = "&".join(f"{flag}=1" for flag, wanted in flags.items() if wanted)
        path = f"{_path('replicas', name, verb)}?{query}"
        try:
            return msgspec.json.decode(self._ask("POST", path), type=ReplicaStatus)
        except _Refused as error:
            if error.status < httpx2.codes.INTERNAL_SERVER_ERROR:
                raise UserError(str(error), hint=_REPLICA_HINTS.get(error.code, "")) from error
            raise

    def tenants(self) -> tuple[TenantInfo, ...]:
        """All tenants, by name.

        Raises:
            StateError: Control does not answer.
            StoreDown: The database does not.
        """
        return msgspec.json.decode(self._ask("GET", "/tenants"), type=tuple[TenantInfo, ...])

    def tenant(self, name: str) -> TenantInfo:
        """One tenant.

        Raises:
            UserError: There is none.
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._wish("GET", _path("tenants", name), hint=_FIRST_TENANT), type=TenantInfo)

    def add_tenant(self, wish: TenantWish) -> TenantInfo:
        """Make a tenant.

        Raises:
            UserError: It exists already.
            TuneplexError: See `tenants`.
        """
        hint = f"`tuneplex tenants set {wish.name}` changes it"
        return msgspec.json.decode(self._wish("POST", "/tenants", wish, hint=hint), type=TenantInfo)

    def change_tenant(self, name: str, change: TenantChange) -> TenantInfo:
        """Change a tenant.

        Raises:
            UserError: There is none.
            TuneplexError: See `tenants`.
        """
        reply = self._wish("PATCH", _path("tenants", name), change, hint=_FIRST_TENANT)
        return msgspec.json.decode(reply, type=TenantInfo)

    def remove_tenant(self, name: str, *, revoke: bool) -> None:
        """Remove a tenant, with `revoke` also one whose keys are active.

        Raises:
            UserError: There is none, or something stands against it.
            TuneplexError: See `tenants`.
        """
        path = _path("tenants", name)
        self._wish("DELETE", f"{path}?revoke=1" if revoke else path, hint=_FIRST_TENANT)

    def keys(self, tenant: str | None = None, *, ended: bool = False) -> tuple[KeyInfo, ...]:
        """Active keys, oldest first, with `ended` also those that were revoked or expired.

        Raises:
            UserError: There is no such tenant.
            TuneplexError: See `tenants`.
        """
        query = {"tenant": tenant, "all": "1" if ended else None}
        given = {name: value for name, value in query.items() if value is not None}
        path = str(httpx2.URL("/keys", params=given))
        return msgspec.json.decode(self._wish("GET", path, hint=_FIRST_TENANT), type=tuple[KeyInfo, ...])

    def key(self, key_id: str) -> KeyInfo:
        """One key.

        Raises:
            UserError: There is none.
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._wish("GET", _path("keys", key_id), hint=_OTHER_KEY), type=KeyInfo)

    def add_key(self, wish: KeyWish) -> NewKey:
        """Make a key.

        Raises:
            UserError: There is no such tenant.
            TuneplexError: See `tenants`.
        """
        hint = f"`tuneplex tenants create {wish.tenant}` makes it"
        return msgspec.json.decode(self._wish("POST", "/keys", wish, hint=hint), type=NewKey)

    def change_key(self, key_id: str, change: KeyChange) -> KeyInfo:
        """Change a key.

        Raises:
            UserError: There is none, or it opens nothing any more.
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._wish("PATCH", _path("keys", key_id), change, hint=_OTHER_KEY), type=KeyInfo)

    def rotate_key(self, key_id: str, how: KeyRotation) -> NewKey:
        """Make a key that replaces one.

        Raises:
            UserError: There is none, or it opens nothing any more.
            TuneplexError: See `tenants`.
        """
        reply = self._wish("POST", _path("keys", key_id, "rotate"), how, hint=_OTHER_KEY)
        return msgspec.json.decode(reply, type=NewKey)

    def revoke_key(self, key_id: str) -> KeyInfo:
        """End a key.

        Raises:
            UserError: There is none.
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._wish("POST", _path("keys", key_id, "revoke"), hint=_OTHER_KEY), type=KeyInfo)

    def adapters(self) -> tuple[AdapterInfo, ...]:
        """All adapters with their versions, by name.

        Raises:
            StateError: Control does not answer.
        """
        return msgspec.json.decode(self._ask("GET", "/adapters"), type=tuple[AdapterInfo, ...])

    def adapter(self, name: str) -> AdapterInfo:
        """One adapter.

        Raises:
            UserError: There is none.
            StateError: Control does not answer.
        """
        return msgspec.json.decode(self._wish("GET", _path("adapters", name), hint=""), type=AdapterInfo)

    def adapter_history(self, name: str) -> tuple[AdapterEvent, ...]:
        """What was done with an adapter, oldest first.

        Raises:
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._ask("GET", _path("adapters", name, "history")), type=tuple[AdapterEvent, ...])

    def add_adapter(self, wish: RolloutWish) -> AdapterInfo:
        """Roll out a version.

        Raises:
            UserError: It is there already, or something stands against it.
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._wish("POST", "/adapters", wish, hint=""), type=AdapterInfo)

    def promote_adapter(self, name: str, version: str) -> AdapterInfo:
        """Let requests get this version.

        Raises:
            UserError: There is none, or they get it already.
            TuneplexError: See `tenants`.
        """
        reply = self._wish("POST", _path("adapters", name, "promote"), VersionWish(version), hint="")
        return msgspec.json.decode(reply, type=AdapterInfo)

    def roll_back_adapter(self, name: str) -> AdapterInfo:
        """Give up the version that is being rolled out, or go back to the one before.

        Raises:
            UserError: There is no such adapter, or no version before.
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._wish("POST", _path("adapters", name, "rollback"), hint=""), type=AdapterInfo)

    def probe_adapter(self, name: str, version: str, probes: tuple[Probing, ...]) -> tuple[Probing, ...]:
        """Texts with the log-probabilities of their tokens, by a version that is loaded.

        Raises:
            UserError: There is none.
            TuneplexError: See `tenants`; no replica has it loaded, or it does not say.
        """
        path, wish = _path("adapters", name, "probe"), ProbeWish(version, probes)
        return msgspec.json.decode(self._wish("POST", path, wish, hint="", timeout=_PROBE_S), type=tuple[Probing, ...])

    def remove_adapter(self, name: str) -> None:
        """Let nobody get an adapter any more.

        Raises:
            UserError: There is none, or it is in the fleet file.
            TuneplexError: See `tenants`.
        """
        self._wish("DELETE", _path("adapters", name), hint="")

    def limits(self) -> tuple[LimitUse, ...]:
        """All that have limits, and what they have used of them.

        Raises:
            StateError: Control does not answer.
        """
        return msgspec.json.decode(self._ask("GET", "/limits"), type=tuple[LimitUse, ...])

    def note_read(self, event: msgspec.Struct) -> None:
        """Have control put it into the audit log that somebody reads that.

        Args:
            event: An `AuditEvent`; its type is not named here because most commands do without `records`.

        Raises:
            StateError: Control does not answer, or is of a version that cannot.
            TuneplexError: It could not write it.
        """
        try:
            self._ask("POST", "/audit/reads", content=msgspec.json.encode(event))
        except _Refused as error:
            if error.status != httpx2.codes.NOT_FOUND:
                raise
            words = "the fleet's control process does not write down who reads its audit log, so it is not shown"
            raise StateError(words, hint="`tuneplex restart control` gives it this version") from error

    def requests(self, request_id: str) -> tuple[Finished, ...]:
        """The requests with an id that are over, oldest first.

        Raises:
            StateError: Control does not answer.
            StoreDown: The database does not.
        """
        path = str(httpx2.URL("/requests", params={"request_id": request_id}))
        return msgspec.json.decode(self._wish("GET", path, hint=""), type=tuple[Finished, ...])

    def usage(self, asked: Mapping[str, str]) -> UsageReport:
        """What was used; `asked` holds the parameters of `GET /usage`.

        Raises:
            TuneplexError: See `tenants`.
        """
        path = str(httpx2.URL("/usage", params=dict(asked)))
        return msgspec.json.decode(self._ask("GET", path, timeout=_LONG_S), type=UsageReport)

    def engines(self) -> tuple[EngineUse, ...]:
        """What each start of each engine says that it has counted.

        Raises:
            TuneplexError: See `tenants`.
        """
        return msgspec.json.decode(self._ask("GET", "/usage/engines", timeout=_LONG_S), type=tuple[EngineUse, ...])

    def _wish(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | None = None,
        *,
        hint: str,
        timeout: float = _TIMEOUT_S,
    ) -> bytes:
        """Ask for something that a person may have got wrong; `hint` is for what does not exist, or exists already.

        Raises:
            UserError: It was wrong; nothing was done.
            StateError: Control does not answer.
            StoreDown: The database does not.
        """
        try:
            content = b"" if body is None else msgspec.json.encode(body)
            return self._ask(method, path, content=content, timeout=timeout)
        except _Refused as error:
            if error.status < httpx2.codes.INTERNAL_SERVER_ERROR:
                senseless = error.status == httpx2.codes.BAD_REQUEST and error.code != _UNKNOWN_TENANT
                raise UserError(str(error), hint="" if senseless else hint) from error
            raise

    def _ask(self, method: str, path: str, **how: Any) -> bytes:  # noqa: ANN401 - passed through to httpx2
        try:
            reply = self._client.request(method, path, **how)
        except httpx2.ReadTimeout as error:
            words = (
                f"the fleet's control process does not answer within {error.request.extensions['timeout']['read']:g} s"
            )
            hint = "it hangs, or is very busy; requests go on meanwhile. `tuneplex logs control` may tell more"
            raise StateError(words, hint=hint) from error
        except httpx2.HTTPError as error:
            hint = "it may be restarting: try again, or see `tuneplex logs control`"
            raise StateError(f"the fleet's control process does not answer ({error})", hint=hint) from error
        if reply.is_error:
            raise _refusal(reply.status_code, reply.content)
        return reply.content


class _Refused(TuneplexError):
    """The admin API's error, with its HTTP status and its code."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def _refusal(status: int, body: bytes) -> TuneplexError:
    """What an error body of OpenAI's shape says."""
    try:
        error = msgspec.json.decode(body, type=dict[str, dict[str, Any]]).get("error", {})
    except msgspec.MsgspecError:
        error = {}
    message = str(error.get("message") or f"the admin API answered {status}")
    code = str(error.get("code") or "")
    return StoreDown(message) if code == _STORE_DOWN else _Refused(message, status, code)


def _path(*parts: str) -> str:
    """A route of which some parts were typed by a person."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
