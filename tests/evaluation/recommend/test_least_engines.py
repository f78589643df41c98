"""No run holds its target with fewer engines than the bound says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.evaluation.recommend.least_engines import least_engines, new_tokens
from servegym.evaluation.recommend.setups import Setup
from servegym.evaluation.recommend.trials import Trials
from servegym.evaluation.running import ThreadRunner
from servegym.evaluation.targets import parse_target
from servegym.latency_models.profile import load_profile
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts

PROFILE = load_profile("a100-llama3-8b")
TARGETS = ("attainment=0.9", "violations=0.1", "ttft_p90=2", "ttlt_p90=20")


def workload_of(rate, prompt=2000, output=20, count=200, prefixes=None):
    columns = {"arrival_s": np.arange(count) / rate, "prompt_tokens": np.full(count, prompt), "output_tokens": output}
    made = Workload.from_columns(columns | {"ttft_slo_s": 2.0, "tpot_slo_s": 0.1})
    return Workload(made.table, prefixes=prefixes)


@settings(max_examples=15, deadline=None)
@given(st.floats(5, 200), st.integers(10, 4000), st.integers(1, 40), st.sampled_from(TARGETS))
def test_no_run_does_with_fewer(rate, prompt, output, target):
    workload = workload_of(rate, prompt, output)
    least = least_engines(workload, PROFILE.deployment(1), parse_target(target))
    trials = Trials(ServingSpec(), PROFILE, [workload], parse_target(target), ThreadRunner(1))
    if least > 1:
        assert trials.shares(Setup(router="min-load"), least - 1, [0])[0] < 0.9


def test_it_grows_with_the_rate():
    target = parse_target("attainment=0.9")
    assert [least_engines(workload_of(rate, count=2000), PROFILE.deployment(1), target) for rate in (1, 30, 60)] == [
        1, 4, 8,
    ]  # fmt: skip


def test_prompts_in_a_cache_are_no_work():
    same = Prompts(16, np.arange(0, 101) * 10, np.tile(np.arange(10), 100))
    assert new_tokens(workload_of(1, 200, count=100, prefixes=same)).tolist() == [200, *[40] * 99]
    assert new_tokens(workload_of(1, 200, count=3)).tolist() == [200] * 3


@pytest.mark.parametrize("target", ["tpot_p99=0.1"])
def test_where_nothing_is_known(target):
    assert least_engines(workload_of(10), PROFILE.deployment(1), parse_target(target)) is None
