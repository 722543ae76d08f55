"""vLLM's own two routes for adapters, with the same bodies and answers, that really unload and never mix contents."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.exceptions import LoRAAdapterNotFoundError

from tuneplex_vllm.bodies import RefusedError

__all__ = ["replace"]

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def replace(app: FastAPI) -> None:
    """Put ours in the place of vLLM's."""
    for path, handler in {LOAD: load_lora_adapter, UNLOAD: unload_lora_adapter}.items():
        found = any(isinstance(route, APIRoute) and route.path == path for route in app.router.routes)
        app.add_api_route(path, handler, methods=["POST"], dependencies=[Depends(validate_json_request)])
        if not found:  # vLLM's is inside something larger and would come first; what it finds it replaces by itself
            app.router.routes.insert(0, app.router.routes.pop())


async def load_lora_adapter(request: LoadLoRAAdapterRequest, raw_request: Request) -> Response:
    """Load an adapter, or with `load_inplace` replace its weights."""
    state = raw_request.app.state
    refusal = await state.openai_serving_models._check_load_lora_adapter_request(request)  # noqa: SLF001 - its words
    if refusal is not None:
        return _error(refusal)
    try:
        await state.tuneplex.load(
            request.lora_name,
            request.lora_path,
            replace_it=request.load_inplace,
            fused_experts=request.is_3d_lora_weight,
        )
    except RefusedError as error:
        return _error(_in_vllms_words(request, error))
    return Response(f"Success: LoRA adapter '{request.lora_name}' added successfully.")


async def unload_lora_adapter(request: UnloadLoRAAdapterRequest, raw_request: Request) -> Response:
    """Forget an adapter's name at once, and its weights when its requests have ended."""
    state = raw_request.app.state
    models = state.openai_serving_models
    refusal = await models._check_unload_lora_adapter_request(request)  # noqa: SLF001 - its words
    if refusal is not None:
        return _error(refusal)
    await state.tuneplex.let_go(models.lora_requests.pop(request.lora_name))
    return Response(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")


def _in_vllms_words(request: LoadLoRAAdapterRequest, error: RefusedError) -> Any:  # noqa: ANN401 - vLLM's own
    if error.code == "adapter_not_found":
        return create_error_response(LoRAAdapterNotFoundError(request.lora_name, request.lora_path))
    if error.status < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != "adapter_invalid":
        return create_error_response(error.message, status_code=error.status)
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return create_error_response(error.message, err_type="InternalServerError", status_code=status)


def _error(refusal: Any) -> JSONResponse:  # noqa: ANN401 - vLLM's own
    return JSONResponse(refusal.model_dump(), refusal.error.code)
