"""`tenants`: who uses the fleet, and what is theirs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import render_keys as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.options import Recording
from tuneplex.cli.terminal import Terminal
from tuneplex.control.bodies import LimitsWish, Name, Pattern, TenantChange, TenantInfo, TenantWish
from tuneplex.errors import UserError
from tuneplex.identity import DEFAULT_TENANT

__all__ = ["agreed", "change", "checked", "create", "listing", "models", "more", "remove", "show", "switch", "wanted"]

_NAME_HINT = "small letters, digits, '.', '_' and '-'; a letter or digit first, 63 characters at most"


def listing(state: StateDir, *, as_json: bool) -> int:
    """Print all tenants.

    Raises:
        TuneplexError: Control or the database does not answer.
    """
    terminal = Terminal.standard()
    with Admin(state.admin_socket) as admin:
        found = admin.tenants()
        if as_json:
            terminal.json(msgspec.to_builtins(found))
        else:
            active = admin.keys()
            terminal.show(render.tenants(found, Counter(key.tenant for key in active)))
    return 0


def show(state: StateDir, name: str, *, as_json: bool) -> int:
    """Print one tenant.

    Raises:
        UserError: There is none.
        TuneplexError: Control or the database does not answer.
    """
    with Admin(state.admin_socket) as admin:
        _print(admin.tenant(name), as_json=as_json)
    return 0


def create(state: StateDir, name: str, wanted: TenantChange, *, as_json: bool) -> int:
    """Make a tenant.

    Raises:
        UserError: It exists already, or the name is none.
        TuneplexError: Control or the database does not answer.
    """
    terminal = Terminal.standard()
    given = {field: value for field, value in msgspec.to_builtins(wanted).items() if value != ""}
    wish = msgspec.convert({"name": checked(name, "NAME"), **given}, TenantWish)
    with Admin(state.admin_socket) as admin:
        made = admin.add_tenant(wish)
    if as_json:
        terminal.json(msgspec.to_builtins(made))
    else:
        terminal.say(f"{name}: made")
        terminal.note(f"`tuneplex keys create --tenant {name}` gives it a key")
    _warn(terminal, state, made)
    return 0


def change(state: StateDir, name: str, wish: TenantChange, *, as_json: bool) -> int:
    """Change a tenant.

    Raises:
        UserError: There is none, or nothing shall be different.
        TuneplexError: Control or the database does not answer.
    """
    if wish == TenantChange():
        raise UserError("nothing was given to change", hint="see `tuneplex tenants set --help`")
    with Admin(state.admin_socket) as admin:
        changed = admin.change_tenant(name, wish)
    _print(changed, as_json=as_json)
    _warn(Terminal.standard(), state, changed)
    return 0


def switch(state: StateDir, name: str, *, disabled: bool) -> int:
    """Disable or enable a tenant.

    Raises:
        UserError: There is none.
        TuneplexError: Control or the database does not answer.
    """
    with Admin(state.admin_socket) as admin:
        admin.change_tenant(name, TenantChange(disabled=disabled))
    words = "disabled; requests with its keys are refused within a second" if disabled else "enabled"
    Terminal.standard().say(f"{name}: {words}")
    return 0


def remove(state: StateDir, name: str, *, revoke: bool, yes: bool) -> int:
    """Remove a tenant; 1 when the person says no.

    Raises:
        UserError: There is none, it has keys, or nobody can be asked.
        TuneplexError: Control or the database does not answer.
    """
    terminal = Terminal.standard()
    if name == DEFAULT_TENANT:
        hint = f"`tuneplex tenants disable {name}` refuses all its keys"
        raise UserError(f"the tenant {name} is always there", hint=hint)
    with Admin(state.admin_socket) as admin:
        admin.tenant(name)
        active = len(admin.keys(name))
        if active and not revoke:
            hint = f"`tuneplex tenants remove {name} --revoke` revokes them first"
            raise UserError(f"the tenant {name} has {_keys(active)}", hint=hint)
        if not agreed(terminal, f"remove {name}{f' and revoke {_keys(active)}' if active else ''}?", yes=yes):
            return 1
        admin.remove_tenant(name, revoke=revoke)
    terminal.say(f"{name}: removed")
    return 0


def _keys(count: int) -> str:
    return "1 active key" if count == 1 else f"{count} active keys"


def agreed(terminal: Terminal, question: str, *, yes: bool) -> bool:
    """Whether to go on.

    Raises:
        UserError: There is nobody to ask.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("there is nobody to ask", hint="add --yes")
    return terminal.confirm(question)


def checked(name: str, what: str) -> str:
    """A name that the admin API takes.

    Raises:
        UserError: It is none.
    """
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise UserError(f"{what}: {name!r} is not a name", hint=_NAME_HINT) from None


def wanted(models: Mapping[str, Any], more: Mapping[str, Any], *, limits: LimitsWish) -> TenantChange:
    """What the options say about a tenant; what was not given is not set."""
    numbers: dict[str, Any] = {} if limits == LimitsWish() else {"limits": limits}
    return TenantChange(**models, **more, **numbers)


def more(
    *, isolated: bool | None, cache_group: str | None, weight: int | None, records: Recording | None
) -> dict[str, Any]:
    """What the options say about a tenant beside models and limits; what was not given is not in it.

    Raises:
        UserError: The group's name is none.
    """
    if cache_group:
        checked(cache_group, "--cache-group")
    recorded = None if records is None else records is Recording.REQUIRED
    given = {"isolated": isolated, "cache_group": cache_group, "weight": weight, "recorded": recorded}
    return {name: value for name, value in given.items() if value is not None}


def models(adapters: Sequence[str] | None, *, none: bool, base: bool | None) -> dict[str, Any]:
    """What the options say about models, as a part of a wish; what was not given is not in it.

    Raises:
        UserError: Both were, or a pattern is empty.
    """
    if adapters and none:
        raise UserError("--adapters and --no-adapters contradict each other", hint="give one of them")
    try:
        found = msgspec.convert(adapters or (), tuple[Pattern, ...])
    except msgspec.ValidationError:
        hint = "write names or patterns such as 'acme-*'; --no-adapters allows no adapter at all"
        raise UserError("--adapters: a pattern is empty, or too long", hint=hint) from None
    given = {"adapters": found} if adapters or none else {}
    return given if base is None else {**given, "base": base}


def _print(found: TenantInfo, *, as_json: bool) -> None:
    terminal = Terminal.standard()
    if as_json:
        terminal.json(msgspec.to_builtins(found))
    else:
        terminal.show(render.tenant(found))


def _warn(terminal: Terminal, state: StateDir, made: TenantInfo) -> None:
    found = render.doubts(state.read_spec(), made.adapters, tenant=made.name, isolated=made.isolated)
    for doubt in found:
        terminal.warn(doubt)
