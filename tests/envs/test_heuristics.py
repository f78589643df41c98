"""Heuristics as agents: played through an environment, each is byte for byte what `simulate` makes of it."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import router, router_names, scaler, scaler_names, scheduler, scheduler_names
from servegym.envs.agents import BaseAgent, play
from servegym.envs.env import ServingEnv
from servegym.errors import EnvError, PolicyError
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from tests.envs.small import IDS, SMALL, OneOf, drawn, make, outcome_bytes, simulated, steps
from tests.envs.test_vector import make_vector
from tests.simulator.test_speculation import with_speculation

BY_SCHEDULER = ("EngineBatching-v0", "RequestRanking-v0", "PrefillPreemption-v0")
BY_ROUTER = ("ClusterRouting-v0", "DisaggregatedRouting-v0")
# Schedulers whose own numbers change when they are asked: they cannot be asked for what is in the slots first.
NOT_TWICE = {"fastserve-mlfq", "hpjf", "qoserve", "semantic", "slots-fcfs", "slots-sjf", "weighted-vtc"}


def check_same(name: str, scenario: Scenario, **arguments: object) -> ServingEnv:
    """Play a heuristic, and return the environment at the end of the episode."""
    env = make(name, scenario, **arguments)
    play(env, BaseAgent())
    assert outcome_bytes(env.simulation.arrays) == simulated(env, scenario)
    return env


def in_sessions(scenario: Scenario, **limits: int) -> Scenario:
    """The requests of a scenario as sessions of three turns."""
    table, turns = scenario.workload.table, np.arange(len(scenario.workload))
    after = SessionDependencies(np.where(turns % 3 == 0, -1, turns - 1), np.full(len(turns), 0.125))
    workload = Workload.from_columns({field: table[field] for field in table.dtype.names}, turns=after)
    return dataclasses.replace(scenario, workload=workload, **limits)


@pytest.mark.slow
@pytest.mark.parametrize("base", scheduler_names())
@pytest.mark.parametrize("name", BY_SCHEDULER)
def test_every_scheduler_is_an_agent_or_is_refused(name: str, base: str) -> None:
    if name != "EngineBatching-v0" and base in NOT_TWICE:
        with pytest.raises(PolicyError, match="a second call would change"):
            make(name, scheduler=base)
    else:
        check_same(name, drawn(name), scheduler=base)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["expected-gain", "flow-prefill"])
def test_schedulers_are_agents_where_one_action_says_everything(base: str) -> None:
    """Two of them, of which one leaves out by its ranks: what they are asked is what RequestRanking-v0 asks of all."""
    check_same("Scheduling-v0", drawn("Scheduling-v0"), scheduler=base)
    with pytest.raises(PolicyError, match="a second call would change"):
        make("Scheduling-v0", scheduler="weighted-vtc")


@pytest.mark.slow
@pytest.mark.parametrize("base", router_names())
@pytest.mark.parametrize("name", BY_ROUTER)
def test_every_router_is_an_agent(name: str, base: str) -> None:
    check_same(name, dataclasses.replace(drawn(name), router=router(base)))


@pytest.mark.slow
@pytest.mark.parametrize("base", scaler_names())
def test_every_scaler_is_an_agent_or_is_refused(base: str) -> None:
    scenario = dataclasses.replace(drawn("TierScaling-v0"), scaler=scaler(base))
    if base == "static":
        env = make("TierScaling-v0", scenario)
        with pytest.raises(EnvError, match="scaler static, which is never asked; it should have one with a parameter"):
            env.reset()
    else:
        check_same("TierScaling-v0", scenario)


@pytest.mark.parametrize("name", (*BY_SCHEDULER, "Scheduling-v0", *BY_ROUTER))
def test_with_noise_correction_and_an_end(name: str) -> None:
    scenario = dataclasses.replace(
        drawn(name, 2),
        disturbance=Disturbance(noise=0.2, drift_per_s=0.05, seed=3),
        correction=Correction(0.7, 4),
        until_s=3.0,
    )
    check_same(name, scenario)


@pytest.mark.parametrize("limits", [{}, {"clients": 3, "max_concurrency": 2}])
@pytest.mark.parametrize("name", IDS)
def test_where_requests_follow_others(name: str, limits: dict[str, int]) -> None:
    scenario = in_sessions(drawn(name), **limits)
    env = check_same(name, scenario)
    # All turns may arrive, so all count.
    assert env._episode_batch.ideal_gain[0] == scenario.gain.ideal(scenario.workload).sum()


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("one_process", [False, True])
@pytest.mark.parametrize("name", IDS)
def test_behind_a_front_end(name: str, one_process: bool, sessions: bool) -> None:
    scenario = in_sessions(drawn(name), clients=3) if sessions else drawn(name)
    front_end = FrontEnd(0.01, 1e-5, 1e-4, 0.02, one_process)
    env = check_same(name, dataclasses.replace(scenario, front_end=front_end))
    assert (env.simulation.result().requests["engine_ttft_s"] >= 0).all()


@pytest.mark.parametrize("name", IDS)
def test_on_engines_that_speculate(name: str) -> None:
    one = Speculation(4, (0.9, 0.7, 0.5, 0.3), 1e-3, 1e-5)
    env = check_same(name, with_speculation(drawn(name), [one] * len(drawn(name).deployment.pools), 5))
    assert env.simulation.arrays.engines["totals"]["accepted_tokens"].sum() > 0


@pytest.mark.parametrize("base", ["slide-batching:gamma=3.0,eta=0.02", "fairbatching:near=0.5"])
def test_settings_of_the_base_count(base: str) -> None:
    check_same("EngineBatching-v0", drawn("EngineBatching-v0"), scheduler=scheduler(base))
    assert simulated(make("EngineBatching-v0", scheduler=base), drawn("EngineBatching-v0")) != simulated(
        make("EngineBatching-v0", scheduler=base.partition(":")[0]), drawn("EngineBatching-v0")
    )


def test_several_engines_take_turns() -> None:
    scenario = drawn("ClusterRouting-v0")
    for name in ("EngineBatching-v0", "RequestRanking-v0", "Scheduling-v0"):
        check_same(name, scenario)


@pytest.mark.parametrize("batches", [2, 7])
def test_an_action_for_several_batches(batches: int) -> None:
    name = "EngineBatching-v0"
    check_same(name, drawn(name), batches_per_step=batches)
    lengths = []
    for repeat in (1, batches):
        env = make(name, drawn(name), batches_per_step=repeat)
        env.reset()
        lengths.append(0)
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
            over = terminated or truncated
            lengths[-1] += 1
    assert lengths[1] == -(-lengths[0] // batches)


@pytest.mark.parametrize("name", (*BY_SCHEDULER, "Scheduling-v0", *BY_ROUTER))
def test_queues_that_become_longer_than_their_arrays(name: str) -> None:
    source = SMALL[name].source.replaced(requests=300.0 * SMALL[name].source.fleet.total, load=100.0)
    scenario = dataclasses.replace(source(np.random.default_rng(0)), until_s=10.0)
    env = make(name, scenario)
    env.reset()
    capacity = env.simulation.arrays.queues.shape[1]
    check_same(name, scenario)
    play(env, BaseAgent())
    assert env.simulation.arrays.queues.shape[1] > capacity

    vector = make_vector(name, 3, scenario=OneOf((scenario, drawn(name))))  # some grow, others do not
    _, infos = vector.reset(seed=2)
    ratios = set()
    while len(ratios) < 2:
        *_, infos = vector.step(infos["base_action"])
        for i in np.flatnonzero(infos.get("_final_info", np.zeros(3))):
            ratios.add(float(infos["final_info"]["tdg_ratio"][i]))
    singles = [list(steps(make(name, one), BaseAgent())) for one in (scenario, drawn(name))]
    assert ratios == {episode[-1][4]["tdg_ratio"] for episode in singles}
