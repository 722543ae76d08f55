"""The commands about requests that are over: their arguments and help."""

from __future__ import annotations

from tuneplex.cli import options as use

__all__ = ["why"]


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
