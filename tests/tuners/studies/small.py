"""A tuning of a second: one engine, a few requests, loads at which there is something to choose."""

from typing import Any

from servegym.tuners.studies.config import TuningConfig
from servegym.tuners.studies.reading import parse_tuning

DOCUMENT: dict[str, Any] = {
    "panel": {
        "trace": ["azure-conv"], "device": ["a100-llama3-8b"], "load": ["overload", 3.0], "requests": 120,
        "seeds": 2,
    },
    "validation": {"seeds": 3},
    "test": {"trace": ["azure-code"], "seeds": 2},
    "trials": 6,
    "top_k": 2,
    "slices": 2,
    "studies": {"slide": {"scheduler": "slide-batching", "tune": ["gamma", "eta"]}},
}  # fmt: skip


def small(**changes: Any) -> TuningConfig:
    return parse_tuning({**DOCUMENT, **changes}, "small")
