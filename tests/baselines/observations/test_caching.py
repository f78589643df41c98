"""What a router sees of engines that cache, by hand: 1 s a token, no constant part, blocks of one token."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.simulator.inputs.deployment import Deployment, PrefixStore
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.records.statuses import AT_ROUTES, DECISION
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.observations.seeing import Seen, of_caching, of_routing
from tests.baselines.observations.test_routing import A_TOKEN_A_SECOND, cluster_of, of_engines
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit


def log(n: float) -> float:
    return np.floor(np.log2(1 + n)) / 20 + ((1 + n) / 2 ** np.floor(np.log2(1 + n)) - 1) / 20


def seen(*engines: dict, request: dict, there: tuple[int, ...] = (), session_engine: int = -1) -> tuple[Seen, Seen]:
    """What is seen with and without counting what is cached. there: tokens of each queued prompt that were cached."""
    simulation, r = cluster_of(*engines, request=request)
    simulation.arrays.requests["sent_cached_tokens"][: len(there)] = there
    simulation.arrays.requests["session_engine"][r] = session_engine
    n = len(engines)
    return of_caching(simulation, r, 0.0, 1, -1, n), of_routing(simulation, r, 0.0, 1, 0, n)


def test_queued_prompts_take_the_time_of_what_is_not_cached():
    # A request of 4 s, due in 20 s. Engine 0 has prompts of 10 s and 8 s, due at 15 and 50, of which it had 9 and 2.
    record = [{"prompt_tokens": 10, "ttft_slo_s": 15.0}, {"prompt_tokens": 8, "ttft_slo_s": 50.0}]
    engines = ({"record": record}, {})
    got, blind = seen(*engines, request={"prompt_tokens": 4, "ttft_slo_s": 20.0}, there=(9, 2))
    assert of_engines(got, "work", 2) == pytest.approx([7 / 27, 0], rel=1e-3)
    assert of_engines(got, "spare", 2) == pytest.approx([9 / 29, 16 / 36], rel=1e-3)
    assert got["request.best_spare"] == pytest.approx(16 / 36, rel=1e-3)
    assert of_engines(got, "late", 2) == [0, 0] and of_engines(blind, "late", 2) == [0.5, 0]
    assert of_engines(got, "uncached_work", 2) == pytest.approx([log(7), 0])
    assert of_engines(got, "kv_after", 2) == pytest.approx([0.89, 0.96])
    assert of_engines(got, "displaced", 2) == pytest.approx([0.11, 0.04])
    # What nothing is cached of is seen as without counting it.
    got, blind = seen(*engines, request={"prompt_tokens": 4, "ttft_slo_s": 20.0})
    assert {name: got[name] for name in blind} == blind


def test_speed_session_and_state():
    engines = ({"decodes": 2, "requests": 2}, {"closed": 1, "requests": 1}, {"up": 0, "off": 1})
    got, _ = seen(*engines, request={"prompt_tokens": 4, "tpot_slo_s": 9.0}, session_engine=1)
    assert of_engines(got, "prefill_rate", 3) == pytest.approx([1 / 10001] * 3)  # a token a second
    assert of_engines(got, "pace", 3) == pytest.approx([3 / 12, 1 / 10, 1 / 10])
    assert of_engines(got, "last", 3) == [0, 1, 0] and got["request.later_turn"] == 1
    assert of_engines(got, "draining", 3) == [0, 1, 0] and of_engines(got, "starting", 3) == [0, 0, 1]
    assert of_engines(got, "base_gap", 3) == [0, 0, 0]  # nothing is compared
    got, _ = seen(*engines, request={"prompt_tokens": 4})
    assert of_engines(got, "last", 3) == [0, 0, 0] and got["request.later_turn"] == 0


def test_what_the_base_compares():
    simulation, r = cluster_of({}, {}, {"up": 0}, request={"prompt_tokens": 4})
    simulation.router_state.state[:, 2] = [3.5, 0.5, 0.0]  # min-load's measure
    got = of_caching(simulation, r, 0.0, 1, 2, 3)
    assert of_engines(got, "base_gap", 3) == [0.75, 0, 1]


def test_what_was_cached_is_noted_when_a_request_is_sent():
    prompts = Prompts(2, np.array([0, 2, 4]), np.array([0, 1, 0, 2]))
    workload = dataclasses.replace(requests(prompt_tokens=[5, 5], arrival_s=[0.0, 1.0]), prefixes=prompts)
    pool = Deployment(
        A_TOKEN_A_SECOND, A_TOKEN_A_SECOND, 100, 2, block_tokens=1, watermark=0.0, prefix_store=PrefixStore(64)
    )  # fmt: skip
    scenario = Scenario(workload, pool, scheduler("edf"), router=router("prefix-affinity"))
    simulation = Simulation(scenario, watched=True)
    assert simulation._advance(AT_ROUTES) == DECISION and simulation._advance(AT_ROUTES) == DECISION
    simulation.router_state.route[0].engine = 0
    got = of_caching(simulation, 1, 1.0, 0, -1, 2)
    assert of_engines(got, "cached", 2) == pytest.approx([log(2), 0]) and got["request.uncached"] == pytest.approx(
        log(3)
    )
    simulation.run()
    assert simulation.arrays.requests["sent_cached_tokens"].tolist() == [0, 2]
