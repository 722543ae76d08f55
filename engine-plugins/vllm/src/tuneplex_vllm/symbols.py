"""Every symbol of vLLM that the plugin touches, as data: what a new version must still have.

`tests/check_symbols.py` resolves each in the installed vLLM and names what is missing or has changed; it also holds
that nothing in this package's source touches what is not listed here. A version joins `KNOWN_VERSIONS` when that
script and the rest of the tests pass beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SYMBOLS", "Symbol"]


@dataclass(frozen=True)
class Symbol:
    """One module, class or function of vLLM.

    Attributes:
        name: `module` or `module:Class.method`.
        parameters: What a function is called with, or what it is overridden with, in order. It may have others, if they
            have defaults. None when its arguments are passed on, or when it is not a function.
        attributes: What is read, called, replaced or overridden of a module, of a class or of its instances.
        words: What the function's source must say, for what can be seen in no other way.
    """

    name: str
    parameters: tuple[str, ...] | None = None
    attributes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


_LORA = "vllm.lora"
_LINEAR = ("y", "x", "lora_a_stacked", "lora_b_stacked", "scale")
_PUNICA = f"{_LORA}.punica_wrapper.punica_cpu:PunicaWrapperCPU"
_MODELS = f"{_LORA}.model_manager:LRUCacheLoRAModelManager"
_WORKER = f"{_LORA}.worker_manager:LRUCacheWorkerLoRAManager"
_STACKS = ("lora_a_stacked", "lora_b_stacked", "reset_lora")
_CLIENT = "vllm.v1.engine.async_llm:AsyncLLM"
_SERVED = "vllm.entrypoints.openai.models.serving:OpenAIServingModels"
_ENDPOINT = "vllm.plugins.endpoint_plugins.interface:EndpointPlugin"
_STATS = "vllm.v1.metrics.loggers:StatLoggerBase"

_COMMON = (
    Symbol("vllm", attributes=("__version__", "envs")),
    Symbol("vllm.envs", attributes=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",)),
    Symbol("vllm.platforms", attributes=("current_platform",)),
    Symbol(
        "vllm.platforms.interface:Platform",
        attributes=("is_cpu", "is_sleep_mode_available", "device_type", "get_punica_wrapper"),
    ),
    Symbol("vllm.platforms.cpu:CpuPlatform.get_punica_wrapper", parameters=()),
    Symbol("vllm.config:VllmConfig", attributes=("instance_id", "parallel_config", "lora_config")),
    Symbol("vllm.config:VllmConfig", attributes=("cache_config", "model_config")),
    Symbol("vllm.config:ParallelConfig", attributes=("pipeline_parallel_size", "rank")),
    Symbol("vllm.config:CacheConfig", attributes=("num_gpu_blocks", "block_size")),
    Symbol("vllm.config:ModelConfig", attributes=("enable_sleep_mode", "enforce_eager")),
    Symbol("vllm.config:LoRAConfig", attributes=("max_lora_rank",)),
    Symbol(
        "vllm.lora.request:LoRARequest",
        parameters=("lora_name", "lora_int_id", "lora_path", "is_3d_lora_weight"),
        attributes=("lora_name", "lora_int_id", "lora_path", "is_3d_lora_weight", "load_inplace"),
    ),
    Symbol("vllm.lora.utils:get_adapter_absolute_path", parameters=("lora_path",)),
    Symbol("vllm.exceptions:LoRAAdapterNotFoundError", parameters=("lora_name", "lora_path")),
    Symbol("vllm.exceptions:GracefulHTTPError", parameters=("message", "http_status")),
)

_KERNELS = (
    Symbol(_PUNICA, attributes=("token_lora_indices", "sampler_indices")),
    Symbol(f"{_PUNICA}.update_metadata", parameters=("mapping", "lora_index_to_id", "max_loras", "vocab_size")),
    Symbol(f"{_PUNICA}.add_lora_linear", parameters=(*_LINEAR, "output_slices", "buffer")),
    Symbol(f"{_PUNICA}.add_lora_logits", parameters=(*_LINEAR, "buffer")),
    Symbol(f"{_PUNICA}.add_lora_embedding", parameters=("y", "x", "lora_b_stacked", "add_inputs")),
    Symbol(f"{_LORA}.layers:BaseLayerWithLoRA", attributes=("reset_lora",)),
    Symbol(f"{_LORA}.layers:ColumnParallelLinearWithLoRA", attributes=_STACKS),
    Symbol(f"{_LORA}.layers:RowParallelLinearWithLoRA", attributes=_STACKS),
    Symbol(f"{_LORA}.layers:MergedColumnParallelLinearWithLoRA", attributes=_STACKS),
    Symbol(f"{_LORA}.layers:LogitsProcessorWithLoRA", attributes=_STACKS),
    Symbol(f"{_LORA}.layers:VocabParallelEmbeddingWithLoRA", attributes=(*_STACKS, "lora_a_stacked_2d")),
)

_MANAGERS = (
    Symbol(
        "vllm.v1.worker.lora_model_runner_mixin",
        attributes=("LRUCacheWorkerLoRAManager", "LoRAModelRunnerMixin"),
    ),
    Symbol(
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.load_lora_model",
        words=("self.lora_manager = LRUCacheWorkerLoRAManager(",),
    ),
    Symbol("vllm.v1.worker.worker_base:WorkerBase", attributes=("model_runner",)),
    Symbol(
        _MODELS,
        parameters=(
            "model",
            "max_num_seqs",
            "max_num_batched_tokens",
            "vocab_size",
            "lora_config",
            "device",
            "vllm_config",
        ),
        attributes=(
            "_active_adapters",
            "_get_lora_layer_weights",
            "_get_module_to_save_weights",
            "_registered_adapters",
            "_use_ep",
            "capacity",
            "deactivate_adapter",
            "device",
            "lora_config",
            "lora_index_to_id",
            "lora_slots",
            "modules",
            "punica_wrapper_mapping",
            "set_adapter_mapping",
        ),
    ),
    Symbol(f"{_MODELS}._add_adapter", parameters=("lora",)),
    Symbol(f"{_MODELS}.add_adapter", parameters=("lora",)),
    Symbol(f"{_MODELS}.activate_adapter", parameters=("lora_id",)),
    Symbol(f"{_MODELS}.pin_adapter", parameters=("lora_id",)),
    Symbol(f"{_MODELS}.remove_adapter", parameters=("adapter_id",)),
    Symbol(f"{_MODELS}.remove_all_adapters", parameters=()),
    Symbol(f"{_MODELS}.remove_oldest_adapter", parameters=()),
    Symbol(
        f"{_LORA}.model_manager:AdapterLRUCache",
        parameters=("capacity", "deactivate_fn"),
        attributes=("order", "pop", "touch"),
    ),
    Symbol(f"{_LORA}.layers:LoRAMapping", attributes=("prompt_mapping",)),
    Symbol(
        f"{_LORA}.lora_model:LoRAModel",
        parameters=("lora_model_id", "rank", "loras"),
        attributes=("id", "loras", "modules_to_save", "rank"),
    ),
    Symbol(f"{_LORA}.lora_weights:LoRALayerWeights", attributes=("lora_a", "lora_b")),
    Symbol(
        _WORKER,
        parameters=("vllm_config", "device", "embedding_modules"),
        attributes=("_adapter_manager", "_manager_cls"),
    ),
    Symbol(f"{_WORKER}._load_adapter", parameters=("lora_request",)),
    Symbol(f"{_WORKER}.add_adapter", parameters=("lora_request",)),
    Symbol(f"{_WORKER}.create_lora_manager", parameters=("model", "vllm_config")),
    Symbol(f"{_WORKER}.pin_adapter", parameters=("adapter_id",)),
    Symbol(f"{_WORKER}.remove_adapter", parameters=("adapter_id",)),
    Symbol(f"{_WORKER}.remove_all_adapters", parameters=()),
    Symbol(f"{_WORKER}.set_active_adapters", parameters=("requests", "mapping")),
)

_SERVER = (
    Symbol(_ENDPOINT, attributes=("name", "required_tasks")),
    Symbol(f"{_ENDPOINT}.attach_router", parameters=("app",)),
    Symbol(f"{_ENDPOINT}.init_state", parameters=("engine_client", "state", "args")),
    Symbol(
        "vllm.entrypoints.launchers.api_server.app_state:init_app_state",
        words=("state.openai_serving_models = OpenAIServingModels(",),
    ),
    Symbol(
        _SERVED,
        attributes=("is_base_model", "lora_id_counter", "lora_requests", "lora_resolver_lock"),
    ),
    Symbol(f"{_SERVED}._check_load_lora_adapter_request", parameters=("request",)),
    Symbol(f"{_SERVED}._check_unload_lora_adapter_request", parameters=("request",)),
    Symbol("vllm.utils.counter:AtomicCounter.inc", parameters=("num",)),
    Symbol("vllm.entrypoints.serve:create_error_response", parameters=("message", "err_type", "status_code")),
    Symbol("vllm.entrypoints.serve.engine.protocol:ErrorResponse", attributes=("error", "model_dump")),
    Symbol("vllm.entrypoints.serve.engine.protocol:ErrorInfo", attributes=("code",)),
    Symbol(
        "vllm.entrypoints.serve.lora.protocol:LoadLoRAAdapterRequest",
        attributes=("lora_name", "lora_path", "load_inplace", "is_3d_lora_weight"),
    ),
    Symbol("vllm.entrypoints.serve.lora.protocol:UnloadLoRAAdapterRequest", attributes=("lora_name",)),
    Symbol("vllm.entrypoints.serve.utils.api_utils:validate_json_request", parameters=("raw_request",)),
    Symbol(_CLIENT, attributes=("output_processor", "vllm_config")),
    Symbol(f"{_CLIENT}.abort", parameters=("request_id", "internal")),
    Symbol(f"{_CLIENT}.collective_rpc", parameters=("method", "args")),
    Symbol(f"{_CLIENT}.pause_generation", parameters=("mode", "clear_cache")),
    Symbol(f"{_CLIENT}.resume_generation", parameters=()),
    Symbol(f"{_CLIENT}.sleep", parameters=("level", "mode")),
    Symbol(f"{_CLIENT}.wake_up", parameters=()),
    Symbol("vllm.v1.engine.output_processor:OutputProcessor", attributes=("lora_states", "request_states")),
    Symbol("vllm.v1.engine.output_processor:RequestState", attributes=("lora_name", "lora_request", "queue")),
    Symbol("vllm.v1.engine.output_processor:RequestOutputCollector.put", parameters=("output",)),
    Symbol("vllm.v1.metrics.stats:LoRARequestStates", attributes=("requests",)),
    Symbol("vllm.v1.metrics.stats:LoRAStats", attributes=("running",)),
    Symbol(_STATS, parameters=("vllm_config", "engine_index")),
    Symbol(f"{_STATS}.record", parameters=("scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx")),
    Symbol(f"{_STATS}.log_engine_initialized", parameters=()),
    Symbol(
        "vllm.v1.metrics.stats:SchedulerStats",
        attributes=("kv_cache_usage", "num_running_reqs", "num_skipped_waiting_reqs", "num_waiting_reqs"),
    ),
    Symbol("vllm.v1.metrics.stats:IterationStats", attributes=("num_generation_tokens", "num_prompt_tokens")),
)

SYMBOLS = (*_COMMON, *_KERNELS, *_MANAGERS, *_SERVER)
