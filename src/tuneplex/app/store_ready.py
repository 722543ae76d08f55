"""Whether a fleet can read its tenants and keys, found out before anything of it starts."""

from __future__ import annotations

from contextlib import closing

from tuneplex.app.state import StateDir
from tuneplex.control.keyring import holds_something
from tuneplex.control.snapshot import read_snapshot
from tuneplex.errors import StateError, StoreDown, StoreError
from tuneplex.records import Store, StoreRefused
from tuneplex.types import FleetSpec

__all__ = ["prepare_store"]


def prepare_store(state: StateDir, spec: FleetSpec) -> str:
    """See that tenants and keys can be read, and make an empty store where there is none.

    Returns:
        What a person should know although the fleet can start, or an empty string.

    Raises:
        StateError: The store cannot be used, or is down while nothing is known of the keys from before.
    """
    begin_anew = f"restore a backup with `tuneplex store restore FILE`, or remove {state.access_file} to begin anew"
    try:
        with closing(Store(state.store_url(spec))) as store:
            done = store.prepare(refuse_empty=begin_anew if _was_used(state) else "")
    except StoreRefused as error:
        raise StateError(str(error), hint=error.hint) from error
    except StoreDown as error:
        if state.access_file.exists():
            return f"{error}; the fleet starts with the keys that it knew last"
        raise StateError(str(error), hint="a fleet's first start needs its database") from error
    except StoreError as error:
        raise StateError(str(error), hint=error.hint) from error
    return f"the store is now of revision {done.after}; a copy of the old one is {done.copy}" if done.copy else ""


def _was_used(state: StateDir) -> bool:
    """Whether a store that is empty now has lost something; so it is taken if that cannot be told any more."""
    known = read_snapshot(state.access_file)
    return state.access_file.exists() if known is None else holds_something(known)
