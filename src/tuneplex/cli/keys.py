"""`keys`: the credentials of tenants. A new secret is all that standard output gets, so that scripts can keep it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render_keys as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.tenants import agreed, checked
from tuneplex.cli.terminal import Terminal
from tuneplex.cli.times import distance, moment, seconds
from tuneplex.control.bodies import (
    KeyChange,
    KeyInfo,
    KeyRotation,
    KeyWish,
    Label,
    LimitsWish,
    NewKey,
    Seconds,
    TenantInfo,
)
from tuneplex.errors import TuneplexError, UserError
from tuneplex.identity import KeyState, Scope

__all__ = ["change", "changed", "create", "lifetime", "listing", "revoke", "rotate", "show", "wish"]

_NEVER = "never"
_WHOLE_KEY = re.compile(r"tpx-(?P<id>[a-z0-9]{12})-[A-Za-z0-9]{43}")


def wish(
    tenant: str,
    *,
    label: str,
    scopes: Sequence[Scope] | None,
    models: Mapping[str, Any],
    expires: str | None,
    limits: LimitsWish,
) -> KeyWish:
    """The key that the options of `keys create` describe.

    Args:
        tenant: Whose.
        label: For people.
        scopes: What it is for; to call models when there are none.
        models: `adapters` and `base`, as far as they were given.
        expires: For how long it works.
        limits: How much it may ask.

    Raises:
        UserError: A value is none.
    """
    return KeyWish(
        checked(tenant, "--tenant"),
        _label(label),
        tuple(dict.fromkeys(scopes or (Scope.USE,))),
        expires_in_s=lifetime(expires),
        limits=limits,
        **models,
    )


def change(*, label: str | None, models: Mapping[str, Any], limits: LimitsWish) -> KeyChange:
    """What the options of `keys set` say shall be different.

    Raises:
        UserError: A value is none, or there is no option.
    """
    given: dict[str, Any] = dict(models)
    if label is not None:
        given["label"] = _label(label)
    if limits != LimitsWish():
        given["limits"] = limits
    if not given:
        raise UserError("nothing was given to change", hint="see `tuneplex keys set --help`")
    return KeyChange(**given)


def _label(text: str) -> str:
    try:
        return msgspec.convert(text, Label)
    except msgspec.ValidationError:
        raise UserError("--label: too long", hint="128 characters at most") from None


def create(state: StateDir, wish: KeyWish, *, as_json: bool) -> int:
    """Make a key and print its secret.

    Raises:
        UserError: There is no such tenant.
        TuneplexError: Control or the database does not answer.
    """
    terminal, fleet = Terminal.standard(), state.read_spec()
    with Admin(state.admin_socket) as admin:
        was_open = not (fleet.gateway.key_sha256 or fleet.gateway.require_key or admin.keys(ended=True))
        made = admin.add_key(wish)
        tenant = admin.tenant(made.key.tenant)
    _hand_over(terminal, state, made, tenant, as_json=as_json)
    for doubt in render.doubts(fleet, wish.adapters, tenant=wish.tenant):
        terminal.warn(doubt)
    if was_open:
        terminal.warn("this is the fleet's first key: from now on it answers nobody without a key")
    return 0


def listing(state: StateDir, tenant: str | None, *, ended: bool, as_json: bool) -> int:
    """Print keys, with `ended` also those that open nothing any more.

    Raises:
        UserError: There is no such tenant.
        TuneplexError: Control or the database does not answer.
    """
    terminal = Terminal.standard()
    with Admin(state.admin_socket) as admin:
        found = admin.keys(tenant, ended=ended)
        if as_json:
            terminal.json(msgspec.to_builtins(found))
        else:
            tenants = {one.name: one for one in admin.tenants()}
            terminal.show(render.keys(found, tenants, time.time()))
    return 0


def show(state: StateDir, key_id: str, *, as_json: bool) -> int:
    """Print one key.

    Raises:
        UserError: There is none.
        TuneplexError: Control or the database does not answer.
    """
    terminal, key_id = Terminal.standard(), _id_of(key_id)
    with Admin(state.admin_socket) as admin:
        _print(terminal, admin, admin.key(key_id), as_json=as_json)
    return 0


def _print(terminal: Terminal, admin: Admin, found: KeyInfo, *, as_json: bool) -> None:
    if as_json:
        terminal.json(msgspec.to_builtins(found))
    else:
        terminal.show(render.key(found, admin.tenant(found.tenant), time.time()))


def changed(state: StateDir, key_id: str, wish: KeyChange, *, as_json: bool) -> int:
    """Change a key and print it.

    Raises:
        UserError: There is none, or it opens nothing any more.
        TuneplexError: Control or the database does not answer.
    """
    terminal, key_id = Terminal.standard(), _id_of(key_id)
    with Admin(state.admin_socket) as admin:
        found = admin.change_key(key_id, wish)
        _print(terminal, admin, found, as_json=as_json)
    for doubt in render.doubts(state.read_spec(), found.adapters, tenant=found.tenant):
        terminal.warn(doubt)
    return 0


def rotate(state: StateDir, key_id: str, *, grace: str, expires: str | None, as_json: bool) -> int:
    """Make a key that replaces another, and print its secret.

    Without `expires` the new key lives as long as the old one was made for: a limit that somebody chose stays one.

    Raises:
        UserError: There is no such key, or it opens nothing any more.
        TuneplexError: Control or the database does not answer.
    """
    terminal, key_id, grace_s = Terminal.standard(), _id_of(key_id), _whole(grace, "--grace")
    with Admin(state.admin_socket) as admin:
        lives = _same_lifetime(admin.key(key_id)) if expires is None else lifetime(expires)
        made = admin.rotate_key(key_id, KeyRotation(grace_s=grace_s, expires_in_s=lives))
        old, tenant = admin.key(key_id), admin.tenant(made.key.tenant)
    _hand_over(terminal, state, made, tenant, as_json=as_json)
    if not as_json:
        terminal.note(_farewell(old, time.time()))
    return 0


def revoke(state: StateDir, key_id: str, *, yes: bool) -> int:
    """End a key; 1 when the person says no.

    Raises:
        UserError: There is none, or nobody can be asked.
        TuneplexError: Control or the database does not answer.
    """
    terminal, fleet, key_id = Terminal.standard(), state.read_spec(), _id_of(key_id)
    with Admin(state.admin_socket) as admin:
        found = admin.key(key_id)
        if found.revoked is not None:
            terminal.say(f"{key_id}: revoked already, {distance(found.revoked, time.time())}")
            return 0
        if not agreed(terminal, f"revoke {key_id}{_of(found)}?", yes=yes):
            return 1
        admin.revoke_key(key_id)
        left = fleet.gateway.key_sha256 or admin.keys()
    terminal.say(f"{key_id}: revoked; requests with it are refused within a second")
    if not left:
        terminal.warn("that was the last key: nobody can call the fleet until another one is made")
    return 0


def lifetime(expires: str | None) -> int | None:
    """What `--expires` says, in seconds; None for a key that does not expire.

    Raises:
        UserError: It is no duration, or one that makes no sense.
    """
    if expires is None or expires.strip().lower() == _NEVER:
        return None
    found = _whole(expires, "--expires")
    if not found:
        raise UserError("--expires: such a key would open nothing", hint="leave it out for a key that does not expire")
    return found


def _id_of(text: str) -> str:
    """A key's id, also of a whole key: who finds one where it should not be has nothing else to revoke it by."""
    whole = _WHOLE_KEY.fullmatch(text)
    return whole["id"] if whole else text


def _whole(text: str, option: str) -> int:
    found = round(seconds(text, option))
    try:
        return msgspec.convert(found, Seconds)
    except msgspec.ValidationError:
        raise UserError(f"{option}: {text} is too long", hint="ten years at most, for instance 90d") from None


def _same_lifetime(old: KeyInfo) -> int | None:
    return None if old.expires is None else max(1, old.expires - old.created)


def _hand_over(terminal: Terminal, state: StateDir, made: NewKey, tenant: TenantInfo, *, as_json: bool) -> None:
    """Print the secret, once; what a person wants to know beside it goes to standard error.

    Raises:
        TuneplexError: It cannot be written; the key is revoked again.
    """
    try:
        if as_json:
            terminal.json(msgspec.to_builtins(made))
            return
        terminal.write(f"{made.secret}\n")
    except OSError as error:
        terminal.give_up()
        raise _unseen(state, made.key, error.strerror or type(error).__name__) from error
    terminal.note(_about(made.key, tenant, time.time()))
    terminal.note("The secret is shown this once and kept nowhere. How to use it:")
    terminal.note(f"  {_use(state, made.key)}")


def _unseen(state: StateDir, made: KeyInfo, why: str) -> TuneplexError:
    """End a key whose secret nobody has got: nobody could use it, and part of it may lie in a file somewhere."""
    told = f"the secret of key {made.id} cannot be written to standard output ({why})"
    try:
        with Admin(state.admin_socket) as admin:
            admin.revoke_key(made.id)
    except TuneplexError as error:
        return TuneplexError(f"{told}; revoke it: `tuneplex keys revoke {made.id}` ({error})")
    instead = f"; {made.replaces} ends as if it had been replaced" if made.replaces else ""
    return TuneplexError(f"{told}, so it is revoked again{instead}: make another one")


def _about(made: KeyInfo, tenant: TenantInfo, now: float) -> str:
    ends = "does not expire" if made.expires is None else f"expires {distance(made.expires, now)}"
    return f"Key {made.id}{_of(made)}: {render.purpose(made, tenant)}; {ends}."


def _of(found: KeyInfo) -> str:
    return f" of {found.tenant}{f' ({found.label})' if found.label else ''}"


def _use(state: StateDir, made: KeyInfo) -> str:
    info = state.supervisor()
    root = (info.url if info else "http://127.0.0.1:8000/v1").removesuffix("/v1")
    scopes = set(made.scopes)
    path = "v1/models" if Scope.USE in scopes else "admin/status" if Scope.ADMIN in scopes else "metrics"
    return f"curl -H 'Authorization: Bearer SECRET' {root}/{path}"


def _farewell(old: KeyInfo, now: float) -> str:
    if old.state is not KeyState.ACTIVE or old.expires is None:
        return f"{old.id} opens nothing any more."
    return f"{old.id} works until {moment(old.expires)} ({distance(old.expires, now)})."
