"""A policy is found by its name without the modules of all others."""

import subprocess
import sys

import pytest

from servegym.baselines import registry
from servegym.errors import PolicyError
from servegym.simulator.policies import policy as policies

OWN = """
from servegym.policy import Policy, register, scheduler
from servegym.baselines import registry
from servegym.errors import PolicyError

@scheduler
def mine(context, ranks, limits):
    pass

register(Policy("qoserve", "scheduler", "of a test", "a test", mine))
try:
    registry.scheduler("qoserve")
except PolicyError as error:
    print(error)
"""


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_module_that_has_the_name_is_enough() -> None:
    code = "import sys\nfrom servegym.baselines import registry\n"
    code += "found = [registry.scheduler(name).name for name in ('slide-batching', 'vllm-v1:max_num_seqs=9')]\n"
    loaded = "[name.rpartition('.')[2] for name in sys.modules if name.startswith('servegym.baselines.schedulers.')]"
    assert printed(f"{code}print(found, sorted({loaded}))") == (
        "['slide-batching', 'vllm-v1'] ['slide_batching', 'vllm_v1']"
    )


def test_policies_that_share_a_module_are_found() -> None:
    code = "from servegym.baselines import registry\n"
    assert (
        printed(code + "print(registry.router('min-tokens').name, registry.scheduler('sjf').name)") == "min-tokens sjf"
    )


def test_a_policy_of_ones_own_that_has_the_name_of_a_shipped_one_is_told() -> None:
    assert printed(OWN) == "there is already a scheduler named qoserve"


@pytest.mark.parametrize("name", ["no-such", "ties", "os", "../least", "a.b", ""])
def test_for_an_unknown_name_all_are_listed(name: str) -> None:
    with pytest.raises(PolicyError, match=r"unknown router .*there are.*gorouting.*silo"):
        registry.router(name)


def test_all_are_registered() -> None:
    assert {(one.kind, one.name) for one in registry.registered()} <= policies.registered().keys()
    assert {"slide-batching", "sjf", "sarathi-fcfs"} <= set(registry.scheduler_names())
