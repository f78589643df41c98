"""A tuning of a second: one engine, a few requests, loads at which there is something to choose."""

from typing import Any

from servegym.experiments.tuning.config import TuningConfig
from servegym.experiments.tuning.reading import parse_tuning

DOCUMENT: dict[str, Any] = {
    "panel": {
        "traces": ["azure-conv"], "devices": ["a100-llama3-8b"], "loads": ["overload", 3.0], "requests": 120,
        "seeds": 2,
    },
    "validation": {"seeds": 3},
    "test": {"traces": ["azure-code"], "seeds": 2},
    "trials": 6,
    "top_k": 2,
    "slices": 2,
    "studies": {"slide": {"scheduler": "slide-batching", "tune": ["gamma", "eta"]}},
}  # fmt: skip


def small(**changes: Any) -> TuningConfig:
    return parse_tuning({**DOCUMENT, **changes}, "small")
