"""What the commands show, without any terminal."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tuneplex.cli import news, render
from tuneplex.cli.terminal import Cell, Sheet, Terminal, plain, table
from tuneplex.types import (
    AdapterStatus,
    AdapterVersion,
    Base,
    Change,
    FleetSpec,
    GatewaySettings,
    GatewayStatus,
    ReplicaState,
    ReplicaStatus,
    Residency,
    Resident,
    Stage,
    Status,
    Tier,
)

SMALL = Sheet(
    ("NAME", "COUNT"), ((Cell("a"), Cell("5")), (Cell("longer", "bold"), Cell("12"))), right=frozenset({"COUNT"})
)


def version(name: str, rank: int = 8) -> AdapterVersion:
    """An adapter version in the pool `default`."""
    return AdapterVersion(name, "0123456789abcdef" * 4, f"/adapters/{name}", rank, "default", source=f"hf:acme/{name}")


def replica(state: ReplicaState = ReplicaState.READY, **more: object) -> ReplicaStatus:
    """A replica of the pool `default`."""
    fields = {"name": "default-0", "pool": "default", "state": state, "since_s": 65.0, **more}
    return ReplicaStatus(**fields)  # type: ignore[arg-type]


def status(*replicas: ReplicaStatus, ready: bool = True, connected: bool = True) -> Status:
    """A fleet with two adapters."""
    loaded = tuple(one.name for one in replicas if one.adapters)
    return Status(
        name="support",
        url="http://127.0.0.1:8000/v1",
        base="smollm2",
        ready=ready,
        started=1000.0,
        gateways=(GatewayStatus(0, pid=1, connected=connected),),
        replicas=replicas,
        adapters=(AdapterStatus(version("contacts"), loaded), AdapterStatus(version("sql", 64), (), "rank too large")),
        aliases={"gpt-4o-mini": "contacts"},
    )


def drawn(renderable: object, width: int) -> str:
    """The renderable as a terminal of this width shows it, without colours."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(renderable)
    return file.getvalue()


def test_plain_sheet_is_aligned_without_boxes_or_trailing_spaces() -> None:
    """A pipe gets columns that line up, and nothing else."""
    assert plain(SMALL) == "NAME    COUNT\na           5\nlonger     12"


def test_plain_sheet_keeps_each_row_on_one_line() -> None:
    """A cell with line breaks does not break the row, so that `grep` and `awk` work."""
    sheet = Sheet(("NOTE",), ((Cell("two\nlines   here"),),))
    assert plain(sheet) == "NOTE\ntwo lines here"


def test_empty_sheet_says_so() -> None:
    """No rows: the sentence for that case, in both forms."""
    sheet = Sheet(("NAME",), (), empty="no adapters")
    assert plain(sheet) == "no adapters"
    assert drawn(table(sheet), 80).strip() == "no adapters"


def test_piped_terminal_writes_no_escape_codes() -> None:
    """Styles vanish where nobody can see them."""
    out = io.StringIO()
    terminal = Terminal(Console(file=out, highlight=False), Console(file=io.StringIO()))
    terminal.say("ready", style="bold green")
    terminal.show(SMALL, SMALL)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue() == f"ready\n{plain(SMALL)}\n\n{plain(SMALL)}\n"


@pytest.mark.parametrize("width", [80, 120])
def test_status_tables_fit_the_terminal(width: int) -> None:
    """No line of any table is wider than the terminal."""
    fleet = status(replica(adapters=("contacts@0123",)), replica(ReplicaState.DEAD, detail="out of memory " * 9))
    for sheet in (render.replicas(fleet), render.adapters(fleet)):
        assert max(map(len, drawn(table(sheet), width).splitlines())) <= width


def test_terminal_leaves_empty_columns_out() -> None:
    """A column without content would take space from the others; a pipe keeps it, so that fields stay in place."""
    sheet = Sheet(("NAME", "NOTE"), ((Cell("a"), Cell("")),))
    assert "NOTE" not in drawn(table(sheet), 80)
    assert "NOTE" in plain(sheet)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_narrow_terminal_cuts_nothing(width: int) -> None:
    """However narrow the terminal is, each cell that says something is there as a whole, and no line is too long."""
    heads = ("SUBJECT", "REQUESTS/MIN", "TOKENS/DAY", "AT A TIME", "MONEY/MONTH", "REFUSED")
    texts = ("tenant acme", "0 of 600", "1061 of 2000000", "0 of 20", "0.0002865 of 100.00 EUR", "17")
    sheet = Sheet(
        heads,
        (tuple(map(Cell, texts)), (Cell("model sql"), *map(Cell, [""] * 4), Cell("0"))),
        right=frozenset(heads[1:]),
        flexible=frozenset({"SUBJECT"}),
    )
    shown = drawn(table(sheet), width)
    assert max(map(len, shown.splitlines())) <= width
    assert [text for text in (*heads[1:], *texts[1:]) if text not in shown] == []
    assert {"tenant", "acme", "model", "sql"} <= set(shown.split())


@pytest.mark.parametrize("width", range(20, 100))
def test_cell_that_is_broken_into_lines_loses_nothing(width: int) -> None:
    """The parts of a path, one under the other, are the whole path at any width."""
    path = "/srv/adapters/of/acme/contacts-in-all-languages"
    cells = tuple(map(Cell, ("contacts", "12", "default-0 slot 1", path)))
    sheet = Sheet(("ADAPTER", "RANK", "WHERE", "SOURCE"), (cells,), flexible=frozenset({"WHERE", "SOURCE"}))
    lines = drawn(table(sheet), width).splitlines()
    assert max(map(len, lines)) <= width
    at = next(line.index("SOURCE") for line in lines if "SOURCE" in line)
    after = "".join(line[at:].strip() for line in lines)
    assert path in after.replace("SOURCE", "").replace("─", "").replace(" ", "")


def test_headline_tells_whether_the_fleet_is_ready() -> None:
    """Name, state, URL, base and time since the start are in one line, gateways only when one is missing."""
    line = render.headline(status(replica(), ready=False), now=1042.0)
    assert line == "support: not ready  http://127.0.0.1:8000/v1  base smollm2  up 42s"
    assert "gateways 0/1" in render.headline(status(replica(), connected=False), now=1042.0)


def test_gateways_with_requests_that_wait_are_named() -> None:
    """There is a line only while something waits, with those gateways only where it does."""
    gateways = (GatewayStatus(0, waiting=3), GatewayStatus(1), GatewayStatus(2, waiting=1))
    assert render.waiting(status(replica())) == ()
    assert render.waiting(Status("f", "", "b", ready=True, started=0.0, gateways=gateways)) == (
        "requests wait: gateway-0 3, gateway-2 1",
    )


def test_replica_row_counts_the_adapters_of_its_pool() -> None:
    """`1/2` says that one of the pool's two adapters is loaded."""
    row = [cell.text for cell in render.replicas(status(replica(adapters=("contacts@0123",), kv_use=0.125))).rows[0]]
    assert row == ["default-0", "ready", "1m05s", "1/2", "", "0", "0", "12%", "0", ""]


def test_an_engine_that_tells_where_its_adapters_are() -> None:
    """A replica's row counts its slots; an adapter's row has its slot, its pin, or the tier it fell back to."""
    name = version("contacts").id
    told = (
        Resident(name, Tier.DEVICE, slot=2, pinned=True),
        Resident(name, Tier.HOST),
        Resident(name, Tier.DISK),
        Resident("somebody's", Tier.DEVICE, slot=0),
        Resident(name),
    )
    fleet = status(*(replica(name=f"r{at}", residency=Residency(4, 1, adapters=(one,))) for at, one in enumerate(told)))
    sheet = render.replicas(fleet)
    assert {row[sheet.columns.index("SLOTS")].text for row in sheet.rows} == {"1/4"}
    sheet = render.adapters(fleet)
    assert [row[sheet.columns.index("WHERE")].text for row in sheet.rows] == ["r0 slot 2, pinned; r1 host; r2 disk", ""]


def test_an_engine_that_does_not_tell_where_its_adapters_are() -> None:
    """What is only modelled is marked as a guess, in both tables."""
    name = version("contacts").id
    told = (Resident(name, Tier.DEVICE), Resident(name, Tier.DISK))
    guesses = (Residency(4, 1, adapters=(one,), guess=True) for one in told)
    fleet = status(*(replica(name=f"r{at}", residency=guess) for at, guess in enumerate(guesses)))
    sheet = render.replicas(fleet)
    assert {row[sheet.columns.index("SLOTS")].text for row in sheet.rows} == {"1/4?"}
    sheet = render.adapters(fleet)
    assert sheet.rows[0][sheet.columns.index("WHERE")].text == "r0 in a slot (guess); r1 disk (guess)"


def test_drift_is_noted_beside_the_replica() -> None:
    """The note of a replica that is ready tells how many adapters were not as they had been left."""
    words = render.note(replica(drift={"unwanted": 1, "missing": 2}))
    assert words == "adapters have drifted: 2 missing, 1 unwanted"


def test_a_notice_is_shown_while_nothing_is_wrong() -> None:
    """The note of a replica that is ready tells what a person should know of it."""
    assert render.note(replica(notice="the engine lacks the plugin")) == "the engine lacks the plugin"
    starting = replica(ReplicaState.STARTING, phase="loading", notice="the engine lacks the plugin")
    assert render.note(starting) == "loading"


def test_dead_replica_shows_why() -> None:
    """The note of a dead replica is its last error, that of a starting one its phase."""
    dead = replica(ReplicaState.DEAD, detail="out of memory", gave_up=True, phase="loading")
    assert [cell.text for cell in render.replicas(status(dead)).rows[0]][1] == "gave up"
    assert render.note(dead) == "out of memory"
    assert render.note(replica(ReplicaState.STARTING, phase="loading weights")) == "loading weights"
    assert render.note(replica(phase="loading weights")) == ""


def test_adapter_row_names_aliases_and_trouble() -> None:
    """An adapter's row tells its version, where it is loaded, its aliases and why it is not loaded."""
    rows = [[cell.text for cell in row] for row in render.adapters(status(replica(adapters=("c",)))).rows]
    assert rows[0] == ["contacts", "0123456789ab", "8", "default", "1/1", "", "gpt-4o-mini", "hf:acme/contacts", ""]
    assert rows[1][-1] == "rank too large"


def test_changes_tell_how_they_come_live() -> None:
    """Each change says in words whether something restarts."""
    sheet = render.changes([Change("pool default", "change", "rolling", "replicas 1 -> 2")])
    assert [cell.text for cell in sheet.rows[0]] == [
        "change",
        "pool default",
        "replicas 1 -> 2",
        "replicas restart one by one",
    ]
    assert "nothing to change" in plain(render.changes([]))


def test_welcome_names_all_models() -> None:
    """Who has just started a fleet reads the URL and every name that works in `model`."""
    text = plain(render.welcome(status(replica()), FleetSpec("support", base=None), 34.0, "Ctrl-C"))  # type: ignore[arg-type]
    assert "http://127.0.0.1:8000/v1" in text
    assert "sql: rank too large" in text
    assert "smollm2, contacts, sql, gpt-4o-mini" in text
    assert "34s" in text


def test_first_look_tells_what_there_is() -> None:
    """Without an earlier look, each replica's state and each connected gateway is news."""
    first = status(replica(ReplicaState.STARTING, phase="loading weights"), ready=False)
    assert news.news(None, first) == (
        "default-0: starting: loading weights",
        "sql: rank too large",
        "gateway-0: connected",
    )


def test_an_adapter_that_does_not_load_is_news_once() -> None:
    """Why an adapter is not loaded is told when it is known, and again only when the reason is another one."""

    def failing(detail: str) -> Status:
        return msgspec.structs.replace(status(), adapters=(AdapterStatus(version("sql"), (), detail),))

    once = failing("default-0: rank too large")
    again = failing("default-0: rank too large (tried 2 times)")
    assert news.news(failing(""), once) == ("sql: default-0: rank too large",)
    assert news.news(once, again) == ()
    assert news.news(again, failing("default-0: no such file")) == ("sql: default-0: no such file",)
    assert news.news(again, failing("")) == ()


def test_no_change_is_no_news() -> None:
    """Seconds that pass and requests that run are not events."""
    before, after = status(replica(running=1)), status(replica(running=5, since_s=99.0))
    assert news.news(before, after) == ()


def test_news_of_a_replica_that_dies_and_comes_back() -> None:
    """Death with its reason, the restart with its count, adapters as they load."""
    ready = status(replica(adapters=("a", "b")))
    dead = status(replica(ReplicaState.DEAD, detail="killed by signal 9"), ready=False)
    again = status(replica(ReplicaState.STARTING, phase="loading weights", restarts=1), ready=False)
    assert news.news(ready, dead) == ("default-0: dead: killed by signal 9", "default-0: adapters 0/2")
    assert news.news(dead, again) == ("default-0: starting (restart 1): loading weights",)
    assert news.news(again, ready) == ("default-0: ready", "default-0: adapters 2/2")


def test_news_of_gateways_and_removed_replicas() -> None:
    """A lost gateway and a replica that went away are told."""
    before = status(replica(), replica(name="default-1"))
    assert news.news(before, status(replica(), connected=False)) == ("default-1: removed", "gateway-0: lost")


@pytest.mark.parametrize("width", [60, 80])
def test_start_picture_shows_each_replica(width: int) -> None:
    """While a fleet starts, each replica has a line with its phase and its adapters."""
    fleet = status(
        replica(ReplicaState.STARTING, phase="loading weights"),
        replica(name="default-1", adapters=("a", "b")),
        replica(ReplicaState.DEAD, name="default-2", detail="out of memory"),
        ready=False,
    )
    picture = drawn(news.starting(fleet, 12.0), width)
    assert "starting support" in picture
    assert all(f"default-{number}" in picture for number in range(3))
    assert max(map(len, picture.splitlines())) <= width
    assert "starting the fleet" in drawn(news.starting(None, 0.5), width)


def test_reserved_pools_are_named_once() -> None:
    """Each pool that is not for everybody has a line of its own, however many replicas it has."""
    own = [replica(name=f"own-{number}", pool="own", tenants=("acme", "eu")) for number in range(2)]
    assert render.reserved(status(replica(), *own)) == ("pool own: only for acme, eu",)
    assert render.reserved(status(replica())) == ()


@pytest.mark.parametrize(
    "settings,keys,words",
    [
        ({}, False, "none is asked for"),
        ({}, True, "tuneplex keys list"),
        ({"require_key": True}, False, "tuneplex keys create"),
        ({"require_key": True}, True, "tuneplex keys list"),
        ({"key_sha256": "00"}, False, "the one of the fleet file"),
        ({"key_sha256": "00"}, True, "or a tenant's"),
    ],
)
def test_welcome_says_which_key_is_needed(settings: dict[str, Any], *, keys: bool, words: str) -> None:
    """Who has just started a fleet reads whether a key is asked for, and where it comes from."""
    spec = FleetSpec("support", Base("smollm2", ""), gateway=GatewaySettings(**settings))
    rows = {row[0].text: row[1].text for row in render.welcome(status(), spec, 1.0, "Ctrl-C", keys=keys).rows}
    assert words in rows["key"]


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"leave_s": 252.0, "outstanding": 3}, "3 requests left, moved in 4m12s; goes away then"),
        ({"leave_s": 0.0, "outstanding": 1, "held": "restart"}, "1 request left, being moved; starts again then"),
        ({"leave_s": 9.0, "drained": True, "held": "drain"}, "no requests left; takes none until it is resumed"),
    ],
)
def test_draining_replicas_say_how_far_they_are(fields: dict[str, Any], words: str) -> None:
    """What is left there, for how long, and what comes then."""
    assert render.note(replica(ReplicaState.DRAINING, **fields)) == words


def test_a_dead_replica_that_was_drained_says_so() -> None:
    """Who wonders why it serves nobody once it is back need not search."""
    dead = replica(ReplicaState.DEAD, detail="ended by signal 9", held="drain")
    assert render.note(dead) == "ended by signal 9; drained by hand"


def test_gateways_that_are_replaced() -> None:
    """Whoever looks sees which process takes whose place, and what the old one still has; else there is no line."""
    new, old = GatewayStatus(2, 9, True, name="gateway-0", stage=Stage.JOINING), GatewayStatus(0, 7, True, 3)
    before = Status("f", "u", "b", ready=True, started=0, gateways=(old, new))
    after = msgspec.structs.replace(
        before, gateways=(msgspec.structs.replace(old, name="gateway-0", stage=Stage.DRAINING),)
    )
    assert render.replaced(before) == ("gateway-0: process 9 starts, to take another one's place (0 under way)",)
    assert render.replaced(after) == ("gateway-0: process 7 was replaced, and finishes what it has (3 under way)",)
    assert render.replaced(msgspec.structs.replace(before, gateways=(old,))) == ()
    assert news.news(before, after) == ("gateway-0: was replaced, and finishes what it has",)
