"""The API as clients see it, through a gateway on FakeEngine."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest

from tests.support.front import Front, chat
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import FleetView, Route


@pytest.mark.parametrize("name", ["base", "contacts", "contacts-v2", "gpt-4o"])
async def test_a_reply_carries_the_name_that_the_client_used(front: Front, engine: FakeEngine, name: str) -> None:
    """Base, adapters whose names begin alike, alias: the engine hears its own name, the client reads its own."""
    unary = await front.chat(name)
    stream = await front.chat(name, stream=True)
    assert unary.status == stream.status == 200
    assert unary.json["model"] == name
    *chunks, done = stream.events
    assert done == "[DONE]"
    assert {json.loads(chunk)["model"] for chunk in chunks} == {name}
    assert stream.text == unary.json["choices"][0]["message"]["content"]
    model = front.gateway.view.model(name)
    assert model is not None
    assert [record.model for record in engine.requests] == [model.version] * 2


async def test_generated_text_is_not_renamed(front: Front, engine: FakeEngine) -> None:
    """A model may talk about its own name on the engine."""
    said = 'I am {"model":"contacts@0123456789ab"} and "model": "contacts@0123456789ab".'
    for cut in (0, 1, 7):
        engine.script(Script(text=said, cut=cut))
        assert (await front.chat(stream=True, max_tokens=500)).text == said
    engine.script(Script(text=said))
    assert (await front.chat(max_tokens=500)).json["choices"][0]["message"]["content"] == said


async def test_fields_that_the_gateway_does_not_know_reach_the_engine(front: Front, engine: FakeEngine) -> None:
    """Only `model` differs in what the engine gets."""
    body = chat("contacts", logit_bias={"50256": -100}, metadata={"model": "contacts"}, user="é")
    await front.post("/v1/chat/completions", body)
    assert engine.requests[0].json == body | {"model": "contacts@0123456789ab"}


async def test_completions_and_responses_are_passed_on(front: Front, engine: FakeEngine) -> None:
    """Streaming and not."""
    for stream in (False, True):
        body = {"model": "contacts", "prompt": "hello", "input": "hello", "stream": stream}
        for path in ("completions", "responses"):
            reply = await front.post(f"/v1/{path}", body)
            assert reply.status == 200, reply.body
            assert b"contacts@" not in reply.body
            assert b'"contacts"' in reply.body
    assert engine.requests[1].path == "/v1/responses"


async def test_responses_do_not_build_on_earlier_ones(front: Front, engine: FakeEngine) -> None:
    """`previous_response_id` would need a store: the error says what to do instead, and no engine is asked."""
    body = {"model": "contacts", "input": "hello", "previous_response_id": "resp_1"}
    reply = await front.post("/v1/responses", body)
    assert reply.status == 400
    assert reply.error["param"] == "previous_response_id"
    assert "`input`" in reply.error["message"]
    assert not engine.requests


async def test_fields_of_responses_mean_nothing_on_other_routes(front: Front, engine: FakeEngine) -> None:
    """`previous_response_id` is refused only where it would be obeyed; elsewhere it is one more unknown field."""
    assert (await front.post("/v1/chat/completions", chat("contacts", previous_response_id="resp_1"))).status == 200
    assert engine.requests[0].json["previous_response_id"] == "resp_1"


async def test_a_gateway_without_a_view_says_that_it_is_starting(front: Front) -> None:
    """Before the first view neither models nor key are known, so nothing is answered but the health of the process."""
    front.gateway.update(FleetView())
    for reply in (await front.post("/v1/chat/completions", chat("contacts")), await front.get("/v1/models")):
        assert (reply.status, reply.error["code"]) == (503, "starting")
    assert (await front.get("/health")).status == 200


async def test_embeddings_are_offered_where_an_engine_has_them(front: Front) -> None:
    """A fleet whose engines have no such route says so; where the engine itself says so, the shape is OpenAI's."""
    body = {"model": "contacts", "input": "hello"}
    asked = await front.post("/v1/embeddings", body)
    assert (asked.status, asked.error["code"]) == (404, "route_not_offered")
    view = front.gateway.view
    replica = msgspec.structs.replace(view.replicas[0], routes=frozenset({Route.CHAT}))
    front.gateway.update(msgspec.structs.replace(view, replicas=(replica,)))
    refused = await front.post("/v1/embeddings", body)
    assert (refused.status, refused.error["code"]) == (404, "route_not_offered")


async def test_models_are_listed_with_their_parents(front: Front) -> None:
    """Base, adapters and aliases, each also by itself."""
    listed = (await front.get("/v1/models")).json
    parents = {card["id"]: card["parent"] for card in listed["data"]}
    assert parents == {"base": None, "contacts": "base", "contacts-v2": "base", "gpt-4o": "base"}
    for card in listed["data"]:
        assert (await front.get(f"/v1/models/{card['id']}")).json == card
    missing = await front.get("/v1/models/nobody")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_a_deployment_has_its_own_base_url(front: Front, engine: FakeEngine) -> None:
    """`/d/NAME/v1` says the model; whatever the body says is only repeated in the reply."""
    without = await front.post("/d/contacts/v1/chat/completions", {"messages": chat()["messages"]})
    other = await front.post("/d/contacts/v1/chat/completions", chat("gpt-5"))
    assert (without.json["model"], other.json["model"]) == ("contacts", "gpt-5")
    assert {record.model for record in engine.requests} == {"contacts@0123456789ab"}
    assert (await front.get("/d/contacts/v1/models")).status == 200
    for path in ("/d/nobody/v1/models", "/d/nobody/v1/models/base"):
        assert (await front.get(path)).error["code"] == "model_not_found"
    assert (await front.post("/d/nobody/v1/chat/completions", chat())).status == 404


@pytest.mark.parametrize(
    "body, status, code",
    [
        (chat("nobody"), 404, "model_not_found"),
        (chat("contacts@0123456789ab"), 404, "model_not_found"),
        ({"messages": []}, 400, "missing_model"),
        ({"model": ""}, 400, "missing_model"),
        ({"model": 7}, 400, "invalid_type"),
        (b"{", 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
    ],
)
async def test_wrong_requests_get_openai_errors(
    front: Front, engine: FakeEngine, body: object, status: int, code: str
) -> None:
    """The error names the field at fault, if it is one; the engine never sees the request."""
    reply = await front.post("/v1/chat/completions", body)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.error["param"] == (None if code == "invalid_json" else "model")
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert not engine.requests


async def test_a_key_is_asked_for(front: Front) -> None:
    """Everything but `/health`, `/ready` and, on loopback, `/metrics` needs it; what is behind is not told without."""
    front.settings(key_sha256=hashlib.sha256(b"sk-1").hexdigest())
    for path in ("/v1/models", "/v1/models/nobody"):
        assert (await front.get(path)).status == 401
        assert (await front.get(path, authorization="Bearer sk-2")).error["code"] == "invalid_api_key"
    assert (await front.get("/v1/models", authorization="Bearer sk-1")).status == 200
    assert (await front.post("/v1/chat/completions", chat("nobody"))).status == 401
    assert (await front.post("/v1/chat/completions", chat(), authorization="Bearer sk-1")).status == 200
    for path in ("/health", "/ready", "/metrics"):
        assert (await front.get(path)).status == 200


async def test_request_ids_are_taken_or_made(front: Front, engine: FakeEngine) -> None:
    """A sane one is kept, any other replaced; the engine gets one of its own that contains it."""
    kept = await front.post("/v1/chat/completions", chat(), x_request_id="trace-1.2:3_4")
    assert kept.headers["x-request-id"] == "trace-1.2:3_4"
    for odd in ("a b", "é", "x" * 129, ""):
        made = await front.get("/health", x_request_id=odd)
        assert made.headers["x-request-id"].startswith("req-")
    await front.post("/v1/chat/completions", chat(), x_request_id="trace-1.2:3_4")
    seen = [record.headers["x-request-id"] for record in engine.requests]
    assert len(set(seen)) == 2
    assert all(name.startswith("trace-1.2:3_4-") for name in seen)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "sent, passed",
    [
        ({"traceparent": TRACE}, {"traceparent": TRACE}),
        ({"traceparent": TRACE, "tracestate": "a=1,b=2"}, {"traceparent": TRACE, "tracestate": "a=1,b=2"}),
        ({"traceparent": TRACE, "tracestate": "x" * 513}, {"traceparent": TRACE}),
        ({"traceparent": TRACE.upper(), "tracestate": "a=1"}, {}),
        ({"traceparent": "00-0af7-b7ad-01"}, {}),
        ({"traceparent": TRACE.replace("00-", "ff-")}, {}),
        ({"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"}, {}),
        ({"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01"}, {}),
        ({"traceparent": f"{TRACE}-more"}, {}),
        ({"traceparent": f"01{TRACE[2:]}-more"}, {"traceparent": f"01{TRACE[2:]}-more"}),
        ({"tracestate": "a=1"}, {}),
    ],
)
async def test_a_trace_goes_on_in_the_engine(
    front: Front, engine: FakeEngine, sent: dict[str, str], passed: dict[str, str]
) -> None:
    """Its context is passed on as it came, if it is one."""
    assert (await front.post("/v1/chat/completions", chat(), **sent)).status == 200
    (record,) = engine.requests
    assert {name: record.headers[name] for name in sent.keys() & record.headers.keys()} == passed


async def test_pages_answer_head_requests_without_a_body(front: Front) -> None:
    """With the length that a GET would have; the connection stays usable."""
    http = await front.connect()
    http.request("HEAD", "/v1/models")
    http.request("GET", "/v1/models")
    head = await http.response(body=False)
    assert head.headers["content-length"] == (await http.response()).headers["content-length"]


async def test_wrong_methods_and_paths(front: Front) -> None:
    """405 and 404, in OpenAI's shape."""
    assert (await front.get("/v1/chat/completions")).error["code"] == "method_not_allowed"
    assert (await front.post("/v1/models", {})).status == 405
    assert (await front.get("/v2/models")).error["code"] == "unknown_path"


async def test_web_pages_of_named_origins_may_call(front: Front) -> None:
    """Preflight without a key, and headers that let the page read reply and request id; other origins get none."""
    front.settings(cors_origins=("https://app.example",), key_sha256="0" * 64)
    http = await front.connect()
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization"}
    http.request("OPTIONS", "/v1/chat/completions", b"", origin="https://app.example", **asked)
    preflight = await http.response()
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    refused = await front.get("/v1/models", origin="https://app.example")
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    http.request("OPTIONS", "/v1/chat/completions", b"", origin="https://evil.example", **asked)
    assert "access-control-allow-origin" not in (await http.response()).headers


async def test_readiness_follows_the_fleet(front: Front) -> None:
    """Without a ready replica `/ready` says 503 and requests get 503 with `retry-after`; `/health` stays."""
    assert (await front.get("/ready")).status == 200
    front.gateway.update(msgspec.structs.replace(front.gateway.view, replicas=()))
    for reply in (await front.get("/ready"), await front.chat()):
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.error["type"] == "server_error"
    assert (await front.get("/health")).status == 200


async def test_refusals_are_counted_for_their_model(front: Front, engine: FakeEngine) -> None:
    """As soon as the model is known; a name that is none, or that the key may not call, is nobody's."""
    view = front.gateway.view
    await front.chat("nobody-knows-this")
    assert front.answered() == {("", "4xx"): 1}
    assert (await front.post("/v1/chat/completions", chat("gpt-4o"), x_tuneplex_deadline="soon")).status == 400
    assert (await front.post("/v1/chat/completions", chat(), x_tuneplex_priority="first")).status == 400
    front.gateway.update(msgspec.structs.replace(view, replicas=()))
    assert (await front.chat("contacts")).error["code"] == "no_ready_engine"
    assert front.answered() == {("", "4xx"): 1, ("contacts", "4xx"): 2, ("contacts", "5xx"): 1}
    assert not engine.requests
    assert front.outcomes() == {}


async def test_metrics_count_what_happened(front: Front) -> None:
    """By route, model and status class; names that clients make up are no labels."""
    await front.chat()
    await front.chat("gpt-4o", stream=True)
    await front.chat("nobody-knows-this")
    reply = await front.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    page = reply.body.decode()
    assert 'tuneplex_requests_total{model="contacts",route="chat/completions",status="2xx"} 2.0' in page
    assert 'tuneplex_requests_total{model="",route="chat/completions",status="4xx"} 1.0' in page
    assert 'tuneplex_time_to_first_token_seconds_count{model="contacts",route="chat/completions"} 1.0' in page
    assert "nobody-knows-this" not in page
    assert front.gateway.report().outstanding == {}
