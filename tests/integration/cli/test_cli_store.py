"""`store`, and what `up` says about a store that it cannot use."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import CommandLine
from tests.support.postgres import GUARDED, Postgres, postgres
from tuneplex.app.state import StateDir
from tuneplex.app.store_ready import prepare_store
from tuneplex.control.snapshot import write_snapshot
from tuneplex.errors import StateError
from tuneplex.identity import Access, Tenant
from tuneplex.records import Store, mint, sqlite_url
from tuneplex.types import Base, FleetSpec

__all__ = ["postgres"]


@pytest.fixture
def line(cli: CommandLine) -> Iterator[CommandLine]:
    """A directory with a fleet that has run and ended; its store holds a tenant and a key."""
    started = cli.run("up", "--detach")
    assert started.returncode == 0, started.stderr
    assert cli.run("down").returncode == 0
    with closing(Store(sqlite_url(cli.states / "shop" / "store.db"))) as store:
        store.add_tenant(Tenant("acme"))
        store.add_key(mint("acme", 5)[0])
    yield cli
    cli.run("down")


def facts(line: CommandLine) -> dict[str, object]:
    """What `store show` tells."""
    done = line.run("store", "show", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_look_back_up_and_restore(line: CommandLine) -> None:
    """A store is shown, backed up, replaced and restored, without the fleet running."""
    assert facts(line) | {"where": "", "generation": 0} == {
        "where": "",
        "revision": "0005",
        "newest": "0005",
        "generation": 0,
        "tenants": 2,
        "keys": 1,
        "active": 1,
    }
    assert line.run("store", "backup", "a").returncode == 0
    assert stat.S_IMODE((line.directory / "a").stat().st_mode) == 0o600
    again = line.run("store", "backup", "a")
    assert (again.returncode, again.stderr) == (2, "error: a exists already\nhint: --force replaces it\n")
    kept = line.run("store", "backup", "a", "--force")
    assert kept.returncode == 0
    refused = line.run("store", "restore", "a")
    assert refused.returncode == 2
    assert "holds 1 tenants and 1 keys already" in refused.stderr
    assert "--replace" in refused.stderr
    done = line.run("store", "restore", "a", "--replace")
    assert done.returncode == 0
    assert done.stdout.split(" of ")[0] == kept.stdout.split(" of ")[0]  # so many rows
    assert (facts(line)["tenants"], facts(line)["keys"]) == (2, 1)
    assert "has revision 0005" in line.run("store", "upgrade").stdout


def test_store_of_an_older_version_is_shown_with_what_to_do(line: CommandLine) -> None:
    """Nothing is counted in tables of another revision, and a warning says why and what helps."""
    with closing(sqlite3.connect(line.states / "shop" / "store.db")) as database, database:
        database.execute("UPDATE tuneplex_revision SET version_num = '0002'")
    done = line.run("store", "show", "--json")
    assert (json.loads(done.stdout)["revision"], json.loads(done.stdout)["keys"]) == ("0002", None)
    assert "needs revision 0005; `tuneplex store upgrade` brings the store there" in done.stderr


def test_shown_to_a_person(line: CommandLine) -> None:
    """Without --json there is a table."""
    head, row = line.run("store", "show").stdout.splitlines()
    assert head.split() == ["STORE", "REVISION", "TENANTS", "KEYS", "ACTIVE"]
    assert row.split() == [str(line.states / "shop" / "store.db"), "0005", "2", "1", "1"]


def test_running_fleet_keeps_its_store(line: CommandLine) -> None:
    """While the fleet runs its store is shown and backed up, but neither replaced nor upgraded."""
    assert line.run("up", "--detach").returncode == 0
    assert facts(line)["keys"] == 1
    assert line.run("store", "backup", "a").returncode == 0
    for words in (["restore", "a", "--replace"], ["upgrade"]):
        done = line.run("store", *words)
        assert done.returncode == 2
        assert "runs" in done.stderr
        assert "tuneplex down" in done.stderr


def test_damaged_backup(line: CommandLine) -> None:
    """A damaged file is refused in one line."""
    (line.directory / "a").write_bytes(b"no backup")
    done = line.run("store", "restore", "a", "--replace")
    assert done.returncode == 2
    assert "a is damaged, or not a backup of a store" in done.stderr
    assert facts(line)["keys"] == 1


def test_no_fleet_yet(cli: CommandLine) -> None:
    """Before a fleet has run there is nothing to show."""
    done = cli.run("store", "show")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no fleet has run here yet" in done.stderr


def test_store_that_is_gone_is_not_begun_anew(line: CommandLine) -> None:
    """A store that vanished does not come back empty, which would let everybody in; a backup brings it back."""
    assert line.run("store", "backup", "a").returncode == 0
    (line.states / "shop" / "access.snapshot").write_bytes(b"something")
    for file in (line.states / "shop").glob("store.db*"):
        file.unlink()
    done = line.run("up", "--detach")
    assert done.returncode == 2
    assert "store.db) is gone" in done.stderr
    assert "tuneplex store restore FILE" in done.stderr
    assert line.run("store", "restore", "a").returncode == 0
    assert line.run("up", "--detach").returncode == 0


def test_store_that_is_empty_is_not_begun_anew(tmp_path: Path, postgres: Postgres) -> None:
    """An empty database in the place of one with keys is refused, in PostgreSQL too; without keys it is fine."""
    state = StateDir(tmp_path)
    spec = FleetSpec("shop", Base("base", "/models/base"))
    for one in (spec, msgspec.structs.replace(spec, store=postgres.database())):
        write_snapshot(state.access_file, Access(required=True))
        with pytest.raises(StateError, match=r"is (gone|empty)") as refused:
            prepare_store(state, one)
        assert "tuneplex store restore FILE" in refused.value.hint
        write_snapshot(state.access_file, Access(tenants=(Tenant("default"),)))
        assert prepare_store(state, one) == ""


def test_damaged_store_stops_up(line: CommandLine) -> None:
    """A store that is none is an error of `up`, not of a process in the background."""
    (line.states / "shop" / "store.db").write_bytes(b"no database" * 1000)
    done = line.run("up", "--detach")
    assert done.returncode == 2
    assert "the file is damaged" in done.stderr
    assert line.processes() == {}


def test_fleet_in_postgresql(cli: CommandLine, postgres: Postgres) -> None:
    """A fleet keeps its tenants in PostgreSQL, by a URL from the environment that is shown nowhere."""
    url = postgres.database()
    cli.write_fleet("gateway: {port: 0}\nstore: {url_env: STORE_URL}")
    started = cli.run("up", "--detach", STORE_URL=url)
    assert started.returncode == 0, started.stderr
    try:
        assert cli.run("tenants", "create", "acme").returncode == 0
        with closing(Store(url)) as store:
            assert [tenant.name for tenant in store.tenants()] == ["acme", "default"]
        assert facts(cli)["tenants"] == 2
        assert str(facts(cli)["where"]).startswith("postgresql://postgres@/test")
        assert not (cli.states / "shop" / "store.db").exists()
        shown = cli.run("config", "show", STORE_URL=url).stdout
        assert url not in shown
        assert "********" in shown
    finally:
        cli.run("down")


def test_server_that_is_away(cli: CommandLine, postgres: Postgres) -> None:
    """Without its database a fleet starts only if it knows its keys, and then says so."""
    url = postgres.database()
    cli.write_fleet(f"gateway: {{port: 0}}\nstore: {url}")
    nowhere = url.replace("?host=/tmp/", "?host=/tmp/not-")
    cli.write_fleet(f"gateway: {{port: 0}}\nstore: {nowhere}")
    first = cli.run("up", "--detach")
    assert first.returncode == 2
    assert "does not answer" in first.stderr
    assert cli.processes() == {}
    cli.write_fleet(f"gateway: {{port: 0}}\nstore: {url}")
    assert cli.run("up", "--detach").returncode == 0
    assert cli.run("down").returncode == 0
    assert (cli.states / "shop" / "access.snapshot").exists()
    cli.write_fleet(f"gateway: {{port: 0}}\nstore: {nowhere}")
    second = cli.run("up", "--detach")
    try:
        assert second.returncode == 0, second.stderr
        assert "warning: " in second.stderr
        assert "starts with the keys that it knew last" in second.stderr
    finally:
        cli.run("down")


@pytest.mark.parametrize(
    "user, words", [("nobody", "it has no such database or user"), (f"{GUARDED}:hunter2", "refuses the user")]
)
def test_wrong_url_stops_up(cli: CommandLine, postgres: Postgres, user: str, words: str) -> None:
    """A URL that a person must mend is an error of `up`, and its password is not shown."""
    cli.write_fleet(f"gateway: {{port: 0}}\nstore: {postgres.url('postgres', user)}")
    done = cli.run("up", "--detach")
    assert done.returncode == 2
    assert words in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert cli.processes() == {}


def test_another_store_needs_a_restart(line: CommandLine) -> None:
    """`apply` does not change the store of a running fleet, and does not show its URL."""
    assert line.run("up", "--detach").returncode == 0
    line.write_fleet("gateway: {port: 0}\nstore: postgresql://me:hunter2@127.0.0.1:1/d")
    done = line.run("apply", "--yes")
    assert done.returncode == 2
    assert "this cannot change while the fleet runs: store" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert Path(line.states / "shop" / "store.db").exists()
