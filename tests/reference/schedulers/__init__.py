"""The schedulers of docs/systems/: a file for each page, a class for each scheduler, written from those pages alone."""

from .base import Custom, Scheduler
from .distserve import DistServe, DistServeChunks, DistServeChunks8K
from .expected_gain import ExpectedGain
from .fairbatching import FairBatching
from .fastserve import FastserveMlfq
from .flow_prefill import FlowPrefill
from .llumnix import LlumnixReserve
from .plas import Plas
from .polyserve import PolyServe
from .proserve import Edf, Sjf, SlideBatching
from .qoserve import Medha, Qoserve
from .sarathi import SarathiEdf, SarathiFcfs, SarathiPriority, SarathiSjf, SarathiSrpf
from .semantic import Hpjf, Semantic, Slots, SlotsSjf
from .slos_serve import SlosServe
from .smartspec import FixedDrafts, SmartSpec
from .vllm import VllmFcfs, VllmV1
from .vtc import WeightedVtc

SCHEDULERS: dict[str, type[Scheduler]] = {
    "distserve": DistServe, "distserve-cp2k": DistServeChunks, "distserve-cp8k": DistServeChunks8K, "edf": Edf,
    "fairbatching": FairBatching, "fastserve-mlfq": FastserveMlfq, "fixed-drafts": FixedDrafts,
    "flow-prefill": FlowPrefill, "hpjf": Hpjf, "llumnix-reserve": LlumnixReserve, "medha": Medha, "plas": Plas,
    "polyserve": PolyServe, "qoserve": Qoserve, "sarathi-edf": SarathiEdf, "sarathi-fcfs": SarathiFcfs,
    "sarathi-priority": SarathiPriority, "sarathi-sjf": SarathiSjf, "sarathi-srpf": SarathiSrpf, "semantic": Semantic,
    "sjf": Sjf, "slide-batching": SlideBatching, "expected-gain": ExpectedGain, "slos-serve": SlosServe,
    "slots-fcfs": Slots, "smartspec": SmartSpec, "slots-sjf": SlotsSjf, "vllm-fcfs": VllmFcfs, "vllm-v1": VllmV1,
    "weighted-vtc": WeightedVtc,
}  # fmt: skip

__all__ = ["SCHEDULERS", "Custom", "Scheduler"]
