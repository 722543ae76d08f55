"""A script for the plot's own environment, which has matplotlib: points with intervals, from JSON to an SVG.

`PYTHON draw.py OUT_FILE < JSON`. The JSON holds `title`, `ylabel`, `categories` and `series`: each with a `label`, a
`color`, a `marker` and `points`, which are [index of the category, median, low, high].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]

mpl.use("svg")
# Text becomes outlines, so that it looks the same wherever it is shown; the same figures give the same bytes.
mpl.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "tuneplex", "font.size": 10})

from matplotlib import pyplot as plt  # type: ignore[import-not-found,unused-ignore]  # noqa: E402 - after `use`

_WIDTH, _HEIGHT = 9.0, 4.2
_COLUMNS = 3
_TOP = 1.15  # at least
_SPREAD = 0.6  # of the room that a category has


def main(out: Path, plot: dict[str, Any]) -> None:
    """Draw `plot` into `out`."""
    figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    series = plot["series"]
    for index, one in enumerate(series):
        shift = _SPREAD * ((index + 0.5) / len(series) - 0.5)
        _points(axes, one, shift)
    axes.axhline(1.0, color="0.5", linewidth=0.8, zorder=0)
    axes.set_ylim(0, max(_TOP, *(1.05 * high for one in series for _, _, _, high in one["points"])))
    axes.set_xticks(range(len(plot["categories"])), plot["categories"])
    axes.set_ylabel(plot["ylabel"])
    axes.set_title(plot["title"], fontsize=10)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, ncols=_COLUMNS, loc="outside lower center")
    figure.savefig(out, metadata={"Date": None})


def _points(axes: Any, one: dict[str, Any], shift: float) -> None:  # noqa: ANN401 - matplotlib has no types here
    where, medians, lows, highs = zip(*one["points"], strict=True)
    below = [median - low for median, low in zip(medians, lows, strict=True)]
    above = [high - median for median, high in zip(medians, highs, strict=True)]
    axes.errorbar(
        [index + shift for index in where],
        medians,
        yerr=[below, above],
        fmt=one["marker"],
        color=one["color"],
        label=one["label"],
        markersize=5,
        capsize=2,
        linewidth=1,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
