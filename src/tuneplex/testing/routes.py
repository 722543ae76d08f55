"""The routes of vLLM's API server, as far as the fake has them."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import msgspec

from tuneplex.testing.adapters import Adapters, LoadRequest, UnloadRequest
from tuneplex.testing.answers import Answer, ChatAnswer, CompletionAnswer
from tuneplex.testing.asks import Asker, named_tool, text_of
from tuneplex.testing.metrics import Meters
from tuneplex.testing.plugin import Plugin
from tuneplex.testing.protocol import Ask, ChatRequest, CompletionRequest, Refusal, ResponsesRequest, decode
from tuneplex.testing.responses import ResponsesAnswer
from tuneplex.testing.script import Record
from tuneplex.testing.serving import Server
from tuneplex.testing.tokens import Tokenizer
from tuneplex.testing.wire import Exchange

__all__ = ["GENERATING", "Options", "Routes", "respond"]

Route = Callable[[Exchange, Record], Awaitable[None]]
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_DONE = b"data: [DONE]\n\n"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine was started with; FakeEngine describes the fields."""

    model: str
    root: str = "/fake/base"
    api_key: str | None = None
    max_model_len: int = 8192
    lora: bool = True
    tool_parser: bool = False
    created: int = 0


class TokenizeRequest(msgspec.Struct):
    """`POST /tokenize`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] = []


class DetokenizeRequest(msgspec.Struct):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


def respond(exchange: Exchange, record: Record, status: int, body: Any, *headers: tuple[str, str]) -> None:  # noqa: ANN401 - JSON
    """Answer with JSON, or with text as it is."""
    data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    kinds = () if isinstance(body, str) else (("content-type", "application/json"),)
    record.status = status
    exchange.start(status, (*kinds, *headers), length=len(data))
    exchange.send(data)
    record.note_sent(data)


class Routes:
    """Answers every request to one engine."""

    version: ClassVar[str] = "0.32.0"

    def __init__(
        self,
        options: Options,
        *,
        adapters: Adapters,
        tokenizer: Tokenizer,
        meters: Meters,
        server: Server,
        plugin: Plugin | None,
        records: list[Record],
    ) -> None:
        self._options = options
        self._adapters = adapters
        self._tokenizer = tokenizer
        self._meters = meters
        self._server = server
        self._plugin = plugin
        self._records = records
        self._asker = Asker(tokenizer, options.max_model_len)
        self._routes: dict[str, dict[str, Route]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/responses": {"POST": self._responses},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load_of_server},
            "/metrics": {"GET": self._metrics},
            "/fake/requests": {"GET": self._requests},
        }
        if options.lora:
            self._routes["/v1/load_lora_adapter"] = {"POST": self._load}
            self._routes["/v1/unload_lora_adapter"] = {"POST": self._unload}
        if plugin is not None:
            self._routes |= _routes_of(plugin, self.version)

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        """Find the route and let it answer.

        Raises:
            Refusal: To be answered in its own words.
        """
        if exchange.path.startswith(_GUARDED) and exchange.method != "OPTIONS" and not self._allowed(exchange):
            respond(exchange, record, 401, {"error": "Unauthorized"})
            return
        methods = self._routes.get(exchange.path)
        if methods is None:
            respond(exchange, record, 404, {"detail": "Not Found"})
        elif exchange.method not in methods:
            respond(exchange, record, 405, {"detail": "Method Not Allowed"}, ("allow", ", ".join(methods)))
        else:
            await methods[exchange.method](exchange, record)

    def weights(self, model: str) -> str:
        """What makes a model or adapter speak its own way."""
        adapter = self._adapters.get(model)
        return "" if adapter is None else adapter.weights

    def _allowed(self, exchange: Exchange) -> bool:
        if self._options.api_key is None:
            return True
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.encode(), self._options.api_key.encode())

    def _known(self, model: str | None) -> str:
        base = self._options.model
        if model is None or model == base or self._adapters.get(model) is not None:
            return model or base
        words = f"The model `{model}` does not exist. Valid aliases: {base}."
        raise Refusal(words, status=404, kind="NotFoundError", param="model")

    async def _chat(self, exchange: Exchange, record: Record) -> None:
        request = decode(ChatRequest, exchange.headers.get("content-type", ""), exchange.body)
        ask = self._asker.chat(request, self._known(request.model))
        record.cache_salt = request.cache_salt
        tool = named_tool(request.tools or [], request.tool_choice)
        answer = ChatAnswer(
            self._tokenizer,
            ask,
            exchange.headers.get("x-request-id", request.request_id),
            tool=str(tool["function"]["name"]) if tool else None,
            required=request.tool_choice == "required",
            quiet=self._options.tool_parser,
            voice=self.weights(ask.model),
        )
        await self._serve(exchange, record, ask, answer)

    async def _completion(self, exchange: Exchange, record: Record) -> None:
        request = decode(CompletionRequest, exchange.headers.get("content-type", ""), exchange.body)
        ask = self._asker.completion(request, self._known(request.model))
        record.cache_salt = request.cache_salt
        request_id = exchange.headers.get("x-request-id", request.request_id)
        answer = CompletionAnswer(self._tokenizer, ask, request_id, voice=self.weights(ask.model))
        await self._serve(exchange, record, ask, answer)

    async def _responses(self, exchange: Exchange, record: Record) -> None:
        request = decode(ResponsesRequest, exchange.headers.get("content-type", ""), exchange.body)
        model = self._known(request.model)
        if request.previous_response_id is not None:
            words = f"Response with id '{request.previous_response_id}' not found."
            raise Refusal(words, status=404, kind="invalid_request_error", param="response_id")
        ask = self._asker.responses(request, model)
        record.cache_salt = request.cache_salt
        tool = named_tool(request.tools, request.tool_choice)
        answer = ResponsesAnswer(ask, request, tool=str(tool["name"]) if tool else None)
        await self._serve(exchange, record, ask, answer, done=b"")

    async def _serve(
        self, exchange: Exchange, record: Record, ask: Ask, answer: Answer, *, done: bytes = _DONE
    ) -> None:
        if record.script.text is not None:
            ask = msgspec.structs.replace(ask, recital=record.script.text)
        adapter = self._adapters.get(ask.model)
        await self._server.serve(exchange, record, ask, answer, adapter=adapter, done=done)

    async def _load(self, exchange: Exchange, record: Record) -> None:
        request = decode(LoadRequest, exchange.headers.get("content-type", ""), exchange.body)
        load = self._adapters.load if self._plugin is None else self._plugin.load_for_vllm
        respond(exchange, record, 200, load(request))

    async def _unload(self, exchange: Exchange, record: Record) -> None:
        request = decode(UnloadRequest, exchange.headers.get("content-type", ""), exchange.body)
        adapter, words = self._adapters.unload(request)
        if self._plugin is not None:
            self._plugin.let_go(adapter)
        respond(exchange, record, 200, words)

    async def _models(self, exchange: Exchange, record: Record) -> None:
        options = self._options
        cards = [_card(options.model, options.root, max_model_len=options.max_model_len)]
        cards += [_card(adapter.name, adapter.path, parent=options.model) for adapter in self._adapters]
        respond(exchange, record, 200, {"object": "list", "data": cards})

    async def _tokenize(self, exchange: Exchange, record: Record) -> None:
        request = decode(TokenizeRequest, exchange.headers.get("content-type", ""), exchange.body)
        turns = [(str(turn.get("role")), text_of(turn.get("content"))) for turn in request.messages]
        ids = self._tokenizer.chat(turns) if request.prompt is None else self._tokenizer.encode(request.prompt)
        length = self._options.max_model_len
        respond(exchange, record, 200, {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None})

    async def _detokenize(self, exchange: Exchange, record: Record) -> None:
        request = decode(DetokenizeRequest, exchange.headers.get("content-type", ""), exchange.body)
        respond(exchange, record, 200, {"prompt": self._tokenizer.decode(request.tokens, skip_special=False)})

    async def _empty(self, exchange: Exchange, record: Record) -> None:
        respond(exchange, record, 200, "")

    async def _load_of_server(self, exchange: Exchange, record: Record) -> None:
        # vLLM counts only with --enable-server-load-tracking.
        respond(exchange, record, 200, {"server_load": 0})

    async def _version(self, exchange: Exchange, record: Record) -> None:
        respond(exchange, record, 200, {"version": self.version})

    async def _metrics(self, exchange: Exchange, record: Record) -> None:
        kind = ("content-type", "text/plain; version=1.0.0; charset=utf-8")
        page = self._meters.page() + (self._plugin.metrics() if self._plugin is not None else "")
        respond(exchange, record, 200, page, kind)

    async def _requests(self, exchange: Exchange, record: Record) -> None:
        seen = [one.summary() for one in self._records if not one.path.startswith("/fake")]
        respond(exchange, record, 200, seen)


def _routes_of(plugin: Plugin, version: str) -> dict[str, dict[str, Route]]:
    async def listing(exchange: Exchange, record: Record) -> None:
        respond(exchange, record, 200, plugin.listing(version))

    def posting(kind: type[msgspec.Struct] | None, answer: Callable[[Any], Awaitable[Any]]) -> Route:
        must_say = kind is not None and any(field.required for field in msgspec.structs.fields(kind))

        async def post(exchange: Exchange, record: Record) -> None:
            body = exchange.body or (b"" if must_say else b"{}")
            read = None if kind is None else decode(kind, exchange.headers.get("content-type", ""), body)
            respond(exchange, record, 200, await answer(read))

        return post

    posts = {f"/v1/tuneplex/{name}": {"POST": posting(*how)} for name, how in plugin.posts.items()}
    return {"/v1/tuneplex/adapters": {"GET": listing}, **posts}


def _card(name: str, root: str, *, parent: str | None = None, max_model_len: int | None = None) -> dict[str, Any]:
    now = int(time.time())
    may = {"create_engine": False, "sampling": True, "logprobs": True, "search_indices": False}
    may |= {"view": True, "fine_tuning": False}
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": now,
        **{f"allow_{what}": allowed for what, allowed in may.items()},
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": now,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
