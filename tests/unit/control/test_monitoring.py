"""The page about metrics and the dashboard, compared with what the fleet's page can show."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from tests.support.documents import ROOT
from tests.support.monitoring import PAGE, Kind, Query, bounds, dashboard, documented, queries, shown
from tuneplex.control.decide import Situation
from tuneplex.control.figures import metrics_page
from tuneplex.control.ledger import Figures
from tuneplex.control.seen import Seen
from tuneplex.engines.server import EngineMetrics
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.routes import Page
from tuneplex.metrics import CATALOGUE
from tuneplex.policy import End
from tuneplex.types import Activations, FleetSpec, GatewayReport, PoolSpec, Residency, Route

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]
Kinds = dict[str, Kind]

ROUTES = {*map(str, Route), *map(str, Page), "other"}
# What labels may hold, of those that hold few things.
VALUES = {"route": ROUTES, "status": {"2xx", "4xx", "5xx"}, "outcome": set(map(str, Outcome))}
WIDTH = 24  # of a dashboard
METRICS = re.compile(r"^\| metric \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


@pytest.fixture
def there(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> Kinds:
    """Every metric that the page can show: the gateways', and those of a replica that tells all it can."""
    told = Residency(4, 2, activations=Activations(7, 0.5))
    replica = make_seen("default-0", PoolSpec("default"), metrics=EngineMetrics(), residency=told)
    ledger = {"default-0": Figures(told, drift={"missing": 1}, moved={"pin": 2})}
    page = shown(metrics_page(make_situation(make_spec(), replica), [], GatewayReport(-1, 0, 0), ledger).decode())
    labels = {**page.labels, **{family.name: frozenset(family.labels) for family in CATALOGUE.values()}}
    return {name: Kind(kind, labels[name]) for name, kind in page.types.items()}


def series(there: Kinds) -> dict[str, frozenset[str]]:
    """The names that queries may use, with their labels."""
    found: dict[str, frozenset[str]] = {}
    for name, kind in there.items():
        if kind.type == "histogram":
            found |= {f"{name}_sum": kind.labels, f"{name}_count": kind.labels, f"{name}_bucket": kind.labels | {"le"}}
        elif kind.type == "summary":
            found |= {f"{name}_sum": kind.labels, f"{name}_count": kind.labels}
        else:
            found[name] = kind.labels
    return found


def test_every_metric_is_documented(there: Kinds) -> None:
    """The documentation has each metric with its type and its labels, and no other."""
    assert documented() == there


def test_other_pages_name_metrics_that_exist(there: Kinds) -> None:
    """Each metric in a table of metrics exists, whatever page it is on."""
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    tables = [table for page in pages for table in METRICS.findall(page)]
    named = {name for table in tables for name in re.findall(r"^\| `(\w+)`", table, re.MULTILINE)}
    assert named == set(there)


@pytest.mark.parametrize("query", queries(), ids=str)
def test_queries_ask_for_what_there_is(there: Kinds, query: Query) -> None:
    """Each query asks for series that exist, by labels that all of them have, and its legend shows no other ones."""
    known = series(there)
    assert query.used()
    for name, matchers in query.used():
        assert name in known
        assert {label for label, _ in matchers} | query.kept() <= known[name]
    assert query.told() <= query.kept()
    assert not ("histogram_quantile" in query.text and "le" not in query.kept())


@pytest.mark.parametrize("query", queries(), ids=str)
def test_queries_ask_for_values_that_occur(query: Query) -> None:
    """What queries ask of routes, statuses and outcomes can be there."""
    asked = [(label, value) for used in query.used() for label, value in used.values if label in VALUES]
    for label, values in asked:
        assert set(values.split("|")) <= VALUES[label]


def test_label_values_are_documented() -> None:
    """The page names every route, every outcome in the table of outcomes, and every way for a try to end."""
    text = (ROOT / PAGE).read_text()
    table = text.partition("| `outcome` | |\n|---|---|\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == VALUES["outcome"]
    (routes,) = re.findall(r"^\| `route` \| (.*) \|$", text, re.MULTILINE)
    assert set(re.findall(r"`([\w/]+)`", routes)) == ROUTES
    (ends,) = re.findall(r"^\| `reason` of a retry or migration \| (.*) \|$", text, re.MULTILINE)
    # An engine that fails by the request itself is not asked again, and no other one.
    assert set(re.findall(r"`(\w+)`", ends)) == {*map(str, End)} - {End.COMPLETE, End.FAILED}


def test_ranges_of_histograms_are_documented() -> None:
    """The page has the very bounds of each histogram."""
    assert bounds() == {family.name: family.bounds for family in CATALOGUE.values() if family.bounds}


def test_dashboard_lays_out_its_panels() -> None:
    """Panels have ids of their own and places inside the dashboard, and none lies on another one."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= WIDTH for one in places)
    assert not [
        (one, other)
        for one, other in itertools.combinations(places, 2)
        if one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
        if one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
    ]


def test_dashboard_names_nobodys_server() -> None:
    """Each panel asks the data source that was chosen at the top, and each query of a model the chosen ones."""
    read = dashboard()
    assert [variable["name"] for variable in read["templating"]["list"]] == ["datasource", "model"]
    panels = [panel for panel in read["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    gateways = {
        f"{name}{end}" for name, family in CATALOGUE.items() if "model" in family.labels for end in ("", "_bucket")
    }
    targets = [query for query in queries() if query.legend]
    used = [used for query in targets for used in query.used() if used.series in gateways]
    assert all(("model", "$model") in one.values for one in used)
