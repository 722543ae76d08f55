"""`GET /metrics` as vLLM writes it, with values that follow what the fake does."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tuneplex.testing.scheduler import Scheduler

__all__ = ["Meters"]

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[next((i for i, bound in enumerate(self.bounds) if value <= bound), -1)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels},le="{"+Inf" if bound == math.inf else bound}"}} {float(seen)}'
        yield f"{name}_count{{{labels}}} {float(seen)}"
        yield f"{name}_sum{{{labels}}} {self.total}"


class Meters:
    """Counts what a FakeEngine does.

    Args:
        model: The label that every series carries.
        scheduler: Where the momentary values come from.
    """

    def __init__(self, model: str, scheduler: Scheduler) -> None:
        self._labels = f'engine="0",model_name="{model}"'
        self._scheduler = scheduler
        self._seen_adapters: dict[str, float] = {}
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter()
        self.first_token_s = _Histogram(_TTFT)
        self.inter_token_s = _Histogram(_ITL)
        self.queue_s = _Histogram(_LATENCY)
        self.prefill_s = _Histogram(_LATENCY)
        self.decode_s = _Histogram(_LATENCY)
        self.whole_s = _Histogram(_LATENCY)

    def page(self) -> str:
        """The page, in Prometheus' text format."""
        return "\n".join((*self._gauges(), *self._counters(), *self._histograms(), *self._adapters())) + "\n"

    def _gauges(self) -> Iterator[str]:
        now = self._scheduler
        yield from self._series("num_requests_running", "gauge", {"": now.running})
        yield from self._series("num_requests_waiting", "gauge", {"": now.waiting})
        waiting = {',reason="capacity"': now.waiting - now.waiting_for_slot, ',reason="deferred"': now.waiting_for_slot}
        yield from self._series("num_requests_waiting_by_reason", "gauge", waiting)
        yield from self._series("kv_cache_usage_perc", "gauge", {"": now.kv_use})
        awake = {f',sleep_state="{state}"': value for state, value in (("awake", 1), ("weights_offloaded", 0))}
        yield from self._series("engine_sleep_state", "gauge", {**awake, ',sleep_state="discard_all"': 0})
        size = f',block_size="16",num_gpu_blocks="{now.kv_blocks}",kv_cache_size_tokens="{now.kv_tokens}"'
        size += ',enable_prefix_caching="True"'
        yield from self._series("cache_config_info", "gauge", {size: 1})

    def _counters(self) -> Iterator[str]:
        for name, value in (
            ("num_preemptions", 0),
            ("prompt_tokens", self.prompt_tokens),
            ("generation_tokens", self.generation_tokens),
            ("prefix_cache_queries", self.prompt_tokens),
            ("prefix_cache_hits", 0),
        ):
            yield from self._series(name, "counter", {"": value}, suffix="_total")
        reasons = ("stop", "length", "abort", "error", "repetition")
        values = {f',finished_reason="{reason}"': self.finished[reason] for reason in reasons}
        yield from self._series("request_success", "counter", values, suffix="_total")

    def _histograms(self) -> Iterator[str]:
        for name, histogram in (
            ("time_to_first_token_seconds", self.first_token_s),
            ("inter_token_latency_seconds", self.inter_token_s),
            ("request_queue_time_seconds", self.queue_s),
            ("request_prefill_time_seconds", self.prefill_s),
            ("request_decode_time_seconds", self.decode_s),
            ("e2e_request_latency_seconds", self.whole_s),
        ):
            yield f"# TYPE vllm:{name} histogram"
            yield from histogram.lines(f"vllm:{name}", self._labels)

    def _adapters(self) -> Iterator[str]:
        now = self._scheduler
        running, waiting = ",".join(now.running_adapters), ",".join(now.waiting_adapters)
        labels = f'max_lora="{now.max_loras}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
        yield "# HELP vllm:lora_requests_info Running stats on lora requests."
        yield "# TYPE vllm:lora_requests_info gauge"
        # Each combination stays on the page with the time it was last true; readers have to take the newest.
        self._seen_adapters[labels] = time.time()
        yield from (f"vllm:lora_requests_info{{{seen}}} {when}" for seen, when in self._seen_adapters.items())

    def _series(self, name: str, kind: str, values: Mapping[str, float], *, suffix: str = "") -> Iterator[str]:
        yield f"# TYPE vllm:{name}{suffix} {kind}"
        for labels, value in values.items():
            yield f"vllm:{name}{suffix}{{{self._labels}{labels}}} {float(value)}"
