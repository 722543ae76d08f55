"""What the documentation and the dashboard say of metrics, read so that it can be compared with what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.support.documents import ROOT, blocks

__all__ = ["Kind", "Query", "Shown", "Used", "bounds", "dashboard", "documented", "queries", "shown"]

PAGE = "docs/metrics.md"
DASHBOARD = "examples/grafana/tuneplex.json"

_ROW = re.compile(r"^\| `(tuneplex_\w+)` \| (counter|gauge|histogram|summary) \| (none|`[\w`, ]+`) \| \S", re.MULTILINE)
_BOUNDS = re.compile(r"^\| `(tuneplex_\w+)` \| ([\d., ]+) \|$", re.MULTILINE)
_USE = re.compile(r"\b(tuneplex_\w+)(?:\{([^{}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_BY = re.compile(r"\b(?:by|on) \(([^()]*)\)")
_SHOWN = re.compile(r"\{\{(\w+)\}\}")
_LABEL_VALUES = re.compile(r"label_values\((tuneplex_\w+), (\w+)\)")


class Kind(NamedTuple):
    """What is told of one metric: its type, and the names of its labels."""

    type: str
    labels: frozenset[str]


class Shown(NamedTuple):
    """What is on a page: the types of all metrics by their names, and the labels of those that have samples."""

    types: Mapping[str, str]
    labels: Mapping[str, frozenset[str]]


class Used(NamedTuple):
    """One series in a query, with the values that it asks of its labels."""

    series: str
    values: tuple[tuple[str, str], ...]


class Query(NamedTuple):
    """One query.

    Attributes:
        place: Where it stands.
        text: In PromQL.
        legend: What is shown of each of its results.
    """

    place: str
    text: str
    legend: str = ""

    def __str__(self) -> str:
        return self.place

    def used(self) -> list[Used]:
        """The series that it asks for."""
        return [Used(name, tuple(_MATCHER.findall(matchers))) for name, matchers in _USE.findall(self.text)]

    def kept(self) -> set[str]:
        """The labels that it groups by."""
        return {label.strip() for labels in _BY.findall(self.text) for label in labels.split(",")}

    def told(self) -> set[str]:
        """The labels that its legend shows."""
        return set(_SHOWN.findall(self.legend))


def documented() -> dict[str, Kind]:
    """Every metric in the tables of the documentation's page."""
    rows = _ROW.findall((ROOT / PAGE).read_text())
    found = {name: Kind(kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(found) == len(rows), "a metric has two rows"
    return found


def bounds() -> dict[str, tuple[float, ...]]:
    """The ranges of histograms, as the documentation's page has them."""
    return {name: tuple(map(float, listed.split(","))) for name, listed in _BOUNDS.findall((ROOT / PAGE).read_text())}


def dashboard() -> dict[str, Any]:
    """Grafana's."""
    read: dict[str, Any] = json.loads((ROOT / DASHBOARD).read_text())
    return read


def queries() -> list[Query]:
    """All queries of the documentation's page and of the dashboard."""
    return [*_documented_queries(), *_shown_queries()]


def _documented_queries() -> Iterator[Query]:
    """Of each block its queries: a line that is indented goes on with the one before."""
    for block in blocks("promql", PAGE):
        for text in re.findall(r"^[^#\s].*(?:\n +.*)*", block.text, re.MULTILINE):
            yield Query(f"{PAGE}:{text[:40]}", text)


def _shown_queries() -> Iterator[Query]:
    read = dashboard()
    for variable in read["templating"]["list"]:
        for name, label in _LABEL_VALUES.findall(variable.get("definition", "")):
            yield Query(f"variable {variable['name']}", f"group by ({label}) ({name})")
    for panel in read["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"{panel['title']}:{target['refId']}", target["expr"], target["legendFormat"])


def shown(page: str) -> Shown:
    """What a rendered page has."""
    types = re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE)
    assert len(dict(types)) == len(types), "a metric is on the page twice"
    labels: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        for sample in family.samples:
            labels[name] = labels.get(name, frozenset()) | (sample.labels.keys() - {"le"})
    return Shown(dict(types), labels)
