"""The gateway's OpenAPI document says what the gateway does, and all of it."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.openapi import HTTP_METHODS, Operation, read
from tuneplex.errors import MethodNotAllowed
from tuneplex.gateway.access import cors_headers
from tuneplex.gateway.openapi import page
from tuneplex.gateway.routes import Page, Target, find_target
from tuneplex.types import GatewaySettings, Route

DOCUMENT = read(page())
OPERATIONS = {
    (method, path): operation
    for path, item in DOCUMENT.paths.items()
    for method, operation in item.operations().items()
}


def target(method: str, path: str) -> Target:
    """What the gateway takes a documented path for, with names in it."""
    return find_target(method, re.sub(r"\{(\w+)\}", r"some-\1", path))


@pytest.mark.parametrize("method, path", OPERATIONS)
def test_what_is_documented_exists(method: str, path: str) -> None:
    """Each operation's path and method are found, with its variables where they belong, and with the keys it says."""
    found = target(method, path)
    assert found.deployment == ("some-deployment" if "{deployment}" in path else None)
    assert found.model == ("some-model" if "{model}" in path else "")
    needs = OPERATIONS[method, path].security
    if found.page is Page.METRICS:
        assert needs == [{"key": []}, {}]
    else:
        assert needs == (None if found.scopes else [])
    assert ("401" in OPERATIONS[method, path].responses) == bool(found.scopes)


@pytest.mark.parametrize("path", DOCUMENT.paths)
def test_other_methods_are_not_taken(path: str) -> None:
    """A method that is not documented for a path is refused with those that are."""
    documented = [method for method in HTTP_METHODS if (method, path) in OPERATIONS]
    for method in HTTP_METHODS:
        if method not in documented:
            with pytest.raises(MethodNotAllowed) as caught:
                target(method, path)
            assert sorted(caught.value.allowed) == sorted(documented)


def test_what_exists_is_documented() -> None:
    """Every route and page but the admin API, which describes itself; below a deployment those that are there."""
    found = [target(method, path) for method, path in OPERATIONS]
    plain = {one.label for one in found if one.deployment is None}
    assert plain == {*(route.value for route in Route), *(page.value for page in Page if page is not Page.ADMIN)}
    below = {one.label for one in found if one.deployment is not None}
    assert below == {*(route.value for route in Route), Page.MODELS.value, Page.MODEL.value}


def test_every_failure_has_the_one_shape() -> None:
    """Each status that is no success answers with the error, as JSON, unless there is no body at all."""
    for (method, _path), operation in OPERATIONS.items():
        for status, answer in operation.responses.items():
            if status != "200" and method != "HEAD":
                assert {kind: one.schema for kind, one in answer.content.items()} == {
                    "application/json": {"$ref": "#/components/schemas/Failure"}
                }
            assert "x-request-id" in answer.headers


def test_no_schema_of_a_request_forbids_a_field() -> None:
    """What the gateway does not know goes to the engine."""
    bodies = [operation.body for operation in OPERATIONS.values() if operation.body is not None]
    assert len(bodies) == 2 * len(Route)
    assert (
        b'"additionalProperties":false'
        not in json.dumps([body.content["application/json"].schema for body in bodies]).encode()
    )


def test_web_pages_may_read_the_headers_that_are_documented() -> None:
    """All that a page can use: ids, limits, and what is told of waiting."""
    exposed = cors_headers(GatewaySettings(cors_origins=("*",)), b"https://x").decode().partition("expose-headers: ")[2]
    assert set(exposed.strip().split(", ")) == set(DOCUMENT.components.headers) - {"allow", "www-authenticate"}


def test_headers_of_refusals_are_documented() -> None:
    """Limits, deadlines and a quarantine may tell not to try again; what comes after waiting tells how long it was."""
    for operation in (one for where, one in OPERATIONS.items() if target(*where).route is not None):
        told = {status: set(answer.headers) for status, answer in operation.responses.items()}
        retried = [status for status, headers in told.items() if "x-should-retry" in headers]
        assert retried == ["409", "429", "502", "504"]
        assert {"retry-after", "x-should-retry"} <= told["429"]
        waited = {status for status, headers in told.items() if "x-tuneplex-waited" in headers}
        assert waited == {"200", "500", "502", "503", "504", "4XX"}


def test_replays_are_documented() -> None:
    """The key, what a replay tells of itself, and why there may be none, on each route that an engine answers."""
    for operation in (one for where, one in OPERATIONS.items() if target(*where).route is not None):
        assert "idempotency-key" in {parameter.name for parameter in operation.parameters}
        replayed = {status for status, one in operation.responses.items() if "idempotent-replayed" in one.headers}
        assert replayed == {"200", "400", "404", "429", "500", "502", "503", "504", "4XX"}
        assert {"409", "422"} <= set(operation.responses)


def test_streams_are_documented_where_there_are_some() -> None:
    """Server-sent events, on the routes that generate."""

    def streams(operation: Operation) -> bool:
        return "text/event-stream" in operation.responses["200"].content

    streaming = {target(*where).label for where, operation in OPERATIONS.items() if streams(operation)}
    assert streaming == {Route.CHAT.value, Route.COMPLETIONS.value, Route.RESPONSES.value}
