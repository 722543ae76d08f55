"""The routes under `/v1/tuneplex`.

vLLM makes an `Endpoints` in the API server only where `VLLM_PLUGINS` names `tuneplex` (entry point group
`vllm.endpoint_plugins`). Beside a vLLM that the plugin does not know, the list tells the adapters' names, and the other
routes answer 501.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

import vllm
from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse
from vllm import envs

from tuneplex_vllm import KNOWN_VERSIONS, is_known
from tuneplex_vllm.bodies import Drain, Load, Named, RefusedError, Sleep, Unload
from tuneplex_vllm.unknown import PublicService

__all__ = ["Endpoints"]

PREFIX = "/v1/tuneplex"


class Endpoints:
    """vLLM's endpoint plugin."""

    name = "tuneplex"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes, before vLLM's: each request is compared with one route after the other."""
        routes = app.router.routes
        others = len(routes)
        app.add_api_route(f"{PREFIX}/adapters", adapters, methods=["GET"])
        for path, handler in _POSTS.items():
            app.add_api_route(f"{PREFIX}/{path}", handler, methods=["POST"])
        routes[:] = [*routes[others:], *routes[:others]]
        if envs.VLLM_ALLOW_RUNTIME_LORA_UPDATING and is_known(vllm.__version__):
            from tuneplex_vllm import own_routes  # noqa: PLC0415 - it needs a vLLM that is known

            own_routes.replace(app)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:  # noqa: ANN401, ARG002 - vLLM's
        """Make what answers; on a server without an engine nothing does."""
        state.tuneplex = None if engine_client is None else await _service(engine_client, state.openai_serving_models)


async def _service(engine: Any, models: Any) -> Any:  # noqa: ANN401 - vLLM's own, and one of two of ours
    if not is_known(vllm.__version__):
        return PublicService(models, vllm.__version__, KNOWN_VERSIONS)
    from tuneplex_vllm.metrics import Collector  # noqa: PLC0415 - these need the insides of a known version
    from tuneplex_vllm.service import Service  # noqa: PLC0415

    service = Service(engine, models, vllm.__version__)
    await service.start()
    Collector(service).register()
    return service


async def _answer(request: Request, ask: Callable[[Any], Awaitable[Any]]) -> JSONResponse:
    service = request.app.state.tuneplex
    if service is None:
        refusal = RefusedError(HTTPStatus.NOT_IMPLEMENTED, "not_supported", "This server has no engine.")
        return JSONResponse(refusal.body(), refusal.status)
    try:
        return JSONResponse(await ask(service))
    except RefusedError as refusal:
        return JSONResponse(refusal.body(), refusal.status)


async def adapters(request: Request) -> JSONResponse:
    """The adapters with their places, and the engine's totals."""
    return await _answer(request, lambda service: service.listing())


async def load(request: Request, body: Load) -> JSONResponse:
    """Load an adapter, or replace its weights."""
    return await _answer(
        request, lambda service: service.load(body.name, body.path, body.tier, replace_it=body.replace)
    )


async def prefetch(request: Request, body: Named) -> JSONResponse:
    """Bring a known adapter to host memory."""
    return await _answer(request, lambda service: service.move("prefetch", body.name))


async def activate(request: Request, body: Named) -> JSONResponse:
    """Give a known adapter a slot."""
    return await _answer(request, lambda service: service.move("activate", body.name))


async def pin(request: Request, body: Named) -> JSONResponse:
    """Keep an adapter in a slot."""
    return await _answer(request, lambda service: service.move("pin", body.name))


async def unpin(request: Request, body: Named) -> JSONResponse:
    """Let an adapter be evicted again."""
    return await _answer(request, lambda service: service.move("unpin", body.name))


async def unload(request: Request, body: Unload) -> JSONResponse:
    """Forget an adapter: name, slot and host copy."""
    return await _answer(request, lambda service: service.unload(body.name, body.running, body.timeout_s))


async def sleep(request: Request, body: Annotated[Sleep | None, Body()] = None) -> JSONResponse:
    """Free the device's memory."""
    return await _answer(request, lambda service: service.sleep((body or Sleep()).level))


async def wake(request: Request) -> JSONResponse:
    """Be as before the sleep."""
    return await _answer(request, lambda service: service.wake())


async def drain(request: Request, body: Annotated[Drain | None, Body()] = None) -> JSONResponse:
    """Hold new requests and wait for running ones."""
    return await _answer(request, lambda service: service.drain((body or Drain()).timeout_s))


async def resume(request: Request) -> JSONResponse:
    """Let requests in again."""
    return await _answer(request, lambda service: service.resume())


_POSTS: dict[str, Callable[..., Awaitable[JSONResponse]]] = {
    "load": load,
    "prefetch": prefetch,
    "activate": activate,
    "pin": pin,
    "unpin": unpin,
    "unload": unload,
    "sleep": sleep,
    "wake": wake,
    "drain": drain,
    "resume": resume,
}
