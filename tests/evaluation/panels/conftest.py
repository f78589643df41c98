"""A policy in a file, which says what it was made with."""

from pathlib import Path

import pytest

from servegym.baselines.artifact.files import save_policy
from servegym.baselines.registry import scheduler

PROVENANCE = {
    "trained_on": {
        "traces": ["azure-conv"], "devices": ["a100-llama3-8b"], "loads": {"low": 0.3, "high": 1.0},
        "seeds": {"first": 0, "last": 999_999},
    },
    "algorithm": "cma-es",
    "wall_s": 900.0,
    "search": {"trials": 32},
}  # fmt: skip


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """The file of slide-batching with gamma 2, tuned: no weights, so no more than the base install is needed."""
    return save_policy(scheduler("slide-batching:gamma=2"), tmp_path / "mine.json", PROVENANCE)
