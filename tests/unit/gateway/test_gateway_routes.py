"""Which page or route a path means."""

from __future__ import annotations

import pytest

from tuneplex.errors import MethodNotAllowed, NotFound
from tuneplex.gateway.routes import Page, find_target
from tuneplex.identity import Scope
from tuneplex.types import Route


@pytest.mark.parametrize("route", list(Route))
def test_every_route_is_found_below_v1_and_below_a_deployment(route: Route) -> None:
    """`/d/NAME/v1` is a base URL of its own; NAME may hold a slash, as it is or percent-encoded."""
    assert find_target("POST", f"/v1/{route.value}").route is route
    for name in ("legal", "org/legal", "org%2Flegal"):
        target = find_target("POST", f"/d/{name}/v1/{route.value}")
        assert target.route is route
        assert target.deployment == name.replace("%2F", "/")


@pytest.mark.parametrize(
    "path, page, model",
    [
        ("/v1/models", Page.MODELS, ""),
        ("/v1/models/legal", Page.MODEL, "legal"),
        ("/v1/models/org/legal", Page.MODEL, "org/legal"),
        ("/v1/models/org%2Flegal", Page.MODEL, "org/legal"),
        ("/d/legal/v1/models", Page.MODELS, ""),
        ("/d/legal/v1/models/base", Page.MODEL, "base"),
        ("/health", Page.HEALTH, ""),
        ("/ready", Page.READY, ""),
        ("/metrics", Page.METRICS, ""),
    ],
)
def test_pages_answer_get_and_head(path: str, page: Page, model: str) -> None:
    """What the gateway answers itself can be looked at, not posted to."""
    for method in ("GET", "HEAD"):
        target = find_target(method, path)
        assert (target.page, target.model) == (page, model)
    with pytest.raises(MethodNotAllowed, match="GET and HEAD, not POST"):
        find_target("POST", path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "*",
        "/v1",
        "/v1/",
        "/v1/chat",
        "/v1/chat/completions/",
        "/v1/files",
        "/d/",
        "/d/legal",
        "/d/legal/v1",
        "/d/legal/v1/",
        "/d//v1/models",
        "/d/a/health",
        "/d/a/v1/d/b/v1/models",
        "/healthz",
        "/admin",
        "/administrator/keys",
        "/d/legal/v1/admin/keys",
        "/d/legal/admin/keys",
    ],
)
def test_other_paths_do_not_exist(path: str) -> None:
    """Nothing else is guessed."""
    with pytest.raises(NotFound):
        find_target("POST", path)


def test_all_below_admin_is_for_control() -> None:
    """Every method that control knows is let through, on whatever path; what the path means is control's business."""
    for path in ("/admin/", "/admin/keys", "/admin/keys/k1/rotate", "/admin/%2e%2e/health"):
        for method in ("GET", "HEAD", "POST", "PATCH", "DELETE"):
            assert find_target(method, path).page is Page.ADMIN
        with pytest.raises(MethodNotAllowed):
            find_target("PUT", path)


@pytest.mark.parametrize(
    "path, scopes",
    [
        ("/v1/chat/completions", {Scope.USE}),
        ("/d/legal/v1/embeddings", {Scope.USE}),
        ("/v1/models", {Scope.USE}),
        ("/v1/models/legal", {Scope.USE}),
        ("/d/legal/v1/models", {Scope.USE}),
        ("/metrics", {Scope.USAGE, Scope.ADMIN}),
        ("/admin/keys", {Scope.ADMIN}),
        ("/health", set()),
        ("/ready", set()),
    ],
)
def test_what_a_path_needs(path: str, scopes: set[Scope]) -> None:
    """The API needs a key to use it, control's pages another one, and whether the gateway lives is for everybody."""
    method = "POST" if path.endswith(("completions", "embeddings")) else "GET"
    assert set(find_target(method, path).scopes) == scopes


def test_routes_take_only_post() -> None:
    """A route under a deployment's base URL too."""
    for path in ("/v1/embeddings", "/d/legal/v1/embeddings"):
        with pytest.raises(MethodNotAllowed, match="takes POST, not GET"):
            find_target("GET", path)
