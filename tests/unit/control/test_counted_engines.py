"""What an engine has counted for this fleet, from the figures that it tells."""

from __future__ import annotations

from typing import Any

from tuneplex.control.seen import Limits
from tuneplex.control.watch import Watch
from tuneplex.engines.driver import EngineMetrics, driver_for
from tuneplex.launchers.launcher import Launched


class Told:
    """A driver whose engine tells these figures, one after the other.

    Args:
        figures: Tokens that were read and written; None where it tells nothing.
    """

    def __init__(self, *figures: tuple[int, int] | None) -> None:
        self._real = driver_for("openai")
        self._figures = iter(figures)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a driver has
        return getattr(self._real, name)

    async def metrics(self, _server: object) -> EngineMetrics | None:
        """The next ones."""
        found = next(self._figures)
        return None if found is None else EngineMetrics(prompt_tokens=found[0], generation_tokens=found[1])


async def watched(launcher: str, *figures: tuple[int, int] | None) -> Watch:
    """A replica that was started at 50, and has told these figures."""
    record = Launched("default-0", "default", launcher, "openai", "s", "http://127.0.0.1:1", started=50.0)
    driver: Any = Told(*figures)
    seconds = iter(range(100, 200))  # one later each time that somebody asks
    watch = Watch(record, driver, lambda: None, limits=Limits(), now=lambda: 60.0, wall=lambda: float(next(seconds)))
    for _ in figures:
        await watch._ask_figures()
    await watch._server.aclose()
    return watch


async def test_an_engine_that_was_started_here_began_at_nothing() -> None:
    """All that it has counted is this fleet's, also what it did before it was asked first."""
    found = (await watched("local", (5, 7), (50, 70))).counted()
    assert found is not None
    assert (found.engine, found.since) == ("default-0/50", 50_000)
    assert (found.first_prompt, found.first_completion, found.prompt, found.completion) == (0, 0, 50, 70)


async def test_an_engine_of_others_is_counted_from_now_on() -> None:
    """What it had counted when it was asked first is not this fleet's."""
    found = (await watched("external", (5, 7), (50, 70))).counted()
    assert found is not None
    assert (found.first_prompt, found.first_completion, found.prompt, found.completion) == (5, 7, 50, 70)
    assert 50_000 < found.since < found.at


async def test_an_engine_that_others_start_again_begins_anew() -> None:
    """Counters that go back are another start's, which began at nothing when the old one was heard last."""
    before = (await watched("external", (5, 7), (50, 70))).counted()
    found = (await watched("external", (5, 7), (50, 70), (2, 90))).counted()
    assert before is not None
    assert found is not None
    assert found.engine == f"{before.engine}.1"
    assert (found.first_prompt, found.first_completion, found.prompt, found.completion) == (0, 0, 2, 90)
    assert found.since < found.at


async def test_an_engine_without_figures_has_counted_nothing_that_is_known() -> None:
    """It is not told at all, rather than as nothing."""
    assert (await watched("external", None)).counted() is None
