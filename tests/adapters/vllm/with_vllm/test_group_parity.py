"""vLLM's own scheduler with KV cache groups and the simulator's vllm-v1: the same at every step."""

import dataclasses

import pytest

from experiments.engines.group_parity import CASES, PREFIX_CASES, Case, compared
from servegym.adapters.vllm.versions import installed_version
from tests.adapters.vllm.with_vllm.served import PROFILE

VERSION = tuple(map(int, (installed_version() or "0.33").split(".")[:2]))
FEW, FEW_SESSIONS = 40, 20  # requests of a case


@pytest.mark.parametrize("case", CASES, ids=[f"{case.seed}-{case.label}" for case in CASES])
def test_holds_the_same_blocks(case: Case) -> None:
    served, first = compared(dataclasses.replace(case, requests=FEW), PROFILE)
    assert first is None
    assert len(served.steps) > 100


@pytest.mark.parametrize("case", PREFIX_CASES, ids=[f"{case.seed}-{case.label}" for case in PREFIX_CASES])
def test_finds_the_same_blocks(case: Case) -> None:
    if VERSION < (0, 30) or (VERSION < (0, 33) and any(group.state for group in case.limits.groups)):
        pytest.skip("the simulator has the rules of vLLM 0.33, which differ (docs/results/vllm-parity.md)")
    served, first = compared(dataclasses.replace(case, requests=FEW_SESSIONS), PROFILE)
    assert first is None
    assert len(served.steps) > 100
