"""The commands about requests that are over: their arguments and help."""

from __future__ import annotations

from tuneplex.cli import options as use

__all__ = ["slo", "why"]


def why(
    request_id: use.RequestId,
    *,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Tell what became of a request that is over.

    Also when the fleet does not run. Its id is in the reply's x-request-id, and in the gateway's errors.

    Example: tuneplex why req-5f1e0c9a7d3b-00002a
    """
    from tuneplex.cli import locate
    from tuneplex.cli import stories as command

    return command.show(locate.any_fleet(state_dir, fleet), request_id, as_json=json)


def slo(
    *,
    window: use.SloWindow = "30d",
    target: use.SloTarget = None,
    ttft: use.SloFirstToken = None,
    by: use.SloBy = "model",
    check: use.SloCheck = False,
    json: use.Json = False,
    fleet: use.FleetName = None,
    state_dir: use.StateDir = None,
) -> int:
    """Tell how much of what is promised of the models was kept.

    Availability, how much of the error budget is used, and how fast. Also when the fleet does not run. The exit code is
    0, with --check 1 when a budget is used up or streams begin too late.

    Example: tuneplex slo --window 7d --by model,tenant
    """
    from tuneplex.cli import locate, times
    from tuneplex.cli import slo as command

    wish = command.Wish(
        times.positive(window, "--window"),
        command.grouping(by),
        target,
        None if ttft is None else times.positive(ttft, "--ttft"),
        check=check,
        as_json=json,
    )
    return command.show(locate.any_fleet(state_dir, fleet), wish)
