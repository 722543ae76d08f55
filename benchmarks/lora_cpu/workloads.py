"""What is asked of the engines: which adapters there are, and the mixes of requests for them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ADAPTERS", "BASE", "PROMPT_TOKENS", "REPLY_TOKENS", "WORKLOADS", "Adapter", "Workload"]

BASE = "base"
PROMPT_TOKENS = 128
REPLY_TOKENS = 32

_ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A random LoRA.

    Attributes:
        name: What requests call it.
        rank: Of its matrices; alpha is twice that.
        modules: Which linear modules of each layer it changes.
    """

    name: str
    rank: int
    modules: tuple[str, ...] = _ALL


@dataclass(frozen=True, slots=True)
class Workload:
    """A mix of requests.

    Attributes:
        name: As in files and `--only`.
        title: For people.
        short: The same, where there is little room.
        models: Whom requests are for: client i begins with number i and each client goes on with the next one.
    """

    name: str
    title: str
    short: str
    models: tuple[str, ...]

    def model(self, client: int, request: int) -> str:
        """Whom a client's request is for."""
        return self.models[(client + request) % len(self.models)]


ADAPTERS = (
    *(Adapter(f"r{rank}", rank) for rank in (8, 16, 32, 64, 128)),
    Adapter("r8-qv", 8, ("q_proj", "v_proj")),
)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("base", "the base", "base", (BASE,)),
        Workload("r8-qv", "rank 8, q and v only", "rank 8\nq, v", ("r8-qv",)),
        *(Workload(f"r{rank}", f"rank {rank}", f"rank\n{rank}", (f"r{rank}",)) for rank in (8, 16, 32, 64, 128)),
        Workload("mix2", "ranks 8 and 128 mixed", "8, 128\nmixed", ("r8", "r128")),
        Workload("mix4", "ranks 8, 16, 64 and 128 mixed", "8, 16, 64,\n128 mixed", ("r8", "r16", "r64", "r128")),
    )
}
