"""Whatever a policy writes or raises: a run ends with its requests served, or with a line about the policy.

What could end the process itself (writing where it should not) is in tests/evaluation/test_policy_checks.py.
"""

import dataclasses
import math
import re
import threading

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from servegym.errors import PolicyError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.inputs.deployment import HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import BY_TOKEN, Gain
from servegym.simulator.policies.policy import Parameter, Parameters, Policy, StateFields
from servegym.simulator.records.signatures import router, scheduler
from servegym.simulator.records.types import LEAVE_OUT, REFUSE
from servegym.simulator.runs.simulation import Simulation
from tests.simulator import hostile
from tests.simulator.fleets import run
from tests.simulator.hostile import FLAGS, HOSTILE, HOSTILE_ROUTER, HOSTILE_SCALER, LIMITS, ROUTES, WAYS
from tests.simulator.scenes import requests, scene
from tests.simulator.test_cluster_transfers import pool

NEVER = 10**9
VALUES = st.one_of(
    st.integers(-5, 5), st.sampled_from([-(2**63), -(2**62), -(2**31), 2**31, 2**62, 2**62 + 2**61]),
    st.integers(-300, 300),
)  # fmt: skip
NUMBERS = st.one_of(st.floats(width=64), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0]))


def scenario(policy: Policy, n: int = 12, **more) -> Scenario:
    """Memory for about four of a dozen requests that come together, and some host memory."""
    rng = np.random.default_rng(1)
    workload = requests(
        arrival_s=np.arange(n) // 4 * 3.0, prompt_tokens=rng.integers(1, 9, n), output_tokens=rng.integers(1, 9, n)
    )
    made = scene(workload, policy, total_blocks=24, **more)
    return dataclasses.replace(made, deployment=dataclasses.replace(made.deployment, host=HostMemory(8, 1e-3, 1e-3)))


def is_refused(way: str, value: int, number: float) -> bool:
    """From the text of docs/extending.md, not from the kernels."""
    if way in LIMITS or way in ("headroom_blocks", "keep_tokens"):
        return value < (1 if way == "chunk_tokens" else 0)
    if way in FLAGS:
        highest = {"phase": 1, "misfit": 1, "evict_for": 2, "preemptible": 2}[way]
        return not 0 <= int(np.array(value % 256, "u1").view("i1")) <= highest
    if way == "slice_s":
        return not number >= 0
    if way == "listed":  # the first position, over and over
        return value != 1 and value < 2**62
    if way in ("time_budget_s", "key", "victim_key"):
        return math.isnan(number)
    return way != "leave_out"


@given(st.sampled_from(WAYS), VALUES, NUMBERS, st.integers(0, 12))
def test_what_is_illegal_ends_the_run_and_all_else_is_served(way, value, number, since):
    value = int(np.int64(float(value)))  # as the kernel gets it
    parameters = {"way": way, "value": float(value), "since": since}
    policy = HOSTILE.with_settings(**parameters)
    # A parameter cannot be nan; a kernel's numbers can.
    simulation = Simulation(scenario(policy))
    simulation.arrays.parameters[0, hostile.NUMBER] = number
    try:
        result = simulation.run()
    except PolicyError as error:
        assert is_refused(way, value, number), error
        assert "scheduler hostile" in str(error) and "\n" not in str(error)
        assert re.search("should be|hostile.py, line [0-9]+, in", str(error)), error
        return
    # These are asked for when memory is short.
    seldom = way in ("victim_key", "keep_tokens", "raise_in_victims", "headroom_blocks")
    assert seldom or since > 0 or not is_refused(way, value, number)
    assert result.summary["finished"] == 12


@pytest.mark.parametrize(("way", "value", "words"), [
    ("watermark_blocks", -7, "set watermark_blocks to -7; it should be 0 or more"),
    ("chunk_tokens", 0, "set chunk_tokens to 0; it should be 1 or more"),
    ("headroom_blocks", -9, "set headroom_blocks of request 3 to -9; it should be 0 or more"),
    ("keep_tokens", -2, "set keep_tokens of request [0-9]+ to -2; it should be 0 or more"),
    ("listed", 0, "listed 0 of [0-9]+ requests; it should be 1 or more"),
    ("listed", 2, "listed positions that should be in ascending order, from 0"),
    ("evict_for", 5, "set evict_for to 5; it should be 0 to 2"),
    ("raise", 0, "failed: hostile.py, line [0-9]+, in hostile: ValueError: had enough"),
    ("assert", 0, "failed: hostile.py, line [0-9]+, in hostile: AssertionError: must not be"),
    ("raise_in_helper", 0, "failed: hostile.py, line [0-9]+, in refuse: ValueError: a helper had enough"),
    ("raise_in_victims", 0, "failed: hostile.py, line [0-9]+, in hostile_victims: ValueError: nobody gives up"),
])  # fmt: skip
def test_the_line_names_policy_place_value_and_what_would_be_right(way, value, words, capfd):
    policy = HOSTILE.with_settings(way=way, value=value)
    with pytest.raises(PolicyError, match=f"at [0-9.e-]+ s scheduler hostile:way={way}.* {words}"):
        Simulation(scenario(policy)).run()
    assert "ignored" not in capfd.readouterr().err


LISTS = Parameters(Parameter("lists", 0, "whether running requests are listed", low=0, high=1, integer=True))


@scheduler
def two_thirds(context, ranks, limits):
    """Leaves a third of the requests out, each iteration another: by their ranks, or not listing them; then their
    ranks are nonsense."""
    queue, lists, listed = context.queue, LISTS.read(context).lists, 0
    limits.chunk_tokens = 3
    for position in range(queue.shape[0]):
        rank, r = ranks[position], queue[position]
        rank.tier, rank.key = 0, float(r * 7 % 5)
        if (r + context.engine.iterations) % 3 > 0:
            ranks[listed].listed = position
            listed += 1
        elif lists:
            rank.tier, rank.key = -9, np.nan
        else:
            rank.tier, rank.key = LEAVE_OUT, 0.0
    if lists and listed > 0:
        limits.listed = listed
    elif lists:
        for position in range(queue.shape[0]):
            ranks[position].tier, ranks[position].key = LEAVE_OUT, 0.0


@pytest.mark.parametrize("n", [12, 300])
def test_what_is_not_listed_is_left_out(n):
    """Where memory is short too: victims give it up by rank, listed or not."""
    policy = Policy("two-thirds", "scheduler", "Leaves out a third.", "", two_thirds, parameters=tuple(LISTS))
    left_out, listed = (Simulation(scenario(policy.with_settings(lists=lists), n)).run().requests for lists in (0, 1))
    assert left_out["evictions"].sum() > 0
    assert left_out.equals(listed)


def test_a_key_that_is_no_number_is_refused_in_long_queues_too():
    """More than the first window, out of order, the last one: seen before anything is sorted."""
    simulation = Simulation(scenario(HOSTILE.with_settings(way="key"), n=300))
    simulation.arrays.parameters[0, hostile.NUMBER] = math.nan
    simulation.arrays.outcomes["ready_s"] = 0.0
    with pytest.raises(PolicyError, match="ranked request 299 by a key of nan"):
        simulation.run()


def test_step_by_step_a_failure_is_raised_at_once_and_a_reset_run_starts_clean():
    simulation = Simulation(scenario(HOSTILE.with_settings(way="raise", since=3)))
    with pytest.raises(PolicyError, match="had enough"):
        while simulation.step():
            pass
    assert simulation.arrays.engines[0].iterations == 3
    simulation.reset()
    assert simulation.step() and not simulation.failures


def test_threads_fail_each_for_itself():
    def outcome(way: str) -> str:
        try:
            return str(Simulation(scenario(HOSTILE.with_settings(way=way, since=4))).run().summary["finished"])
        except PolicyError as error:
            return str(error)

    ways = ["raise", "none", "assert", "none", "raise_in_helper", "none"] * 3
    told: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=i, way=way: told.update({i: outcome(way)})) for i, way in enumerate(ways)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = {"raise": "had enough", "assert": "must not be", "raise_in_helper": "a helper", "none": "12"}
    assert all(words[way] in told[i] for i, way in enumerate(ways)), told


@given(
    st.sampled_from(ROUTES), st.one_of(st.integers(-4, 6), st.sampled_from([-(2**62), 2**31, 2**62])), st.integers(0, 4)
)
def test_routes_that_cannot_be_end_the_run(way, value, since):
    workload = requests(arrival_s=np.arange(6.0), prompt_tokens=[3] * 6, output_tokens=[2] * 6)
    routing = HOSTILE_ROUTER.with_settings(way=way, value=value, since=since)
    engines = (pool("prefill", 2), pool("decode", 2))
    assume(way != "engine" or value != REFUSE)  # which it may say: test_refusing.py
    if (way == "decode_engine" and value in (-1, 2, 3)) or (way == "tier" and value in (-1, 0)):
        run(workload, *engines, routing=routing)
        return
    with pytest.raises(PolicyError, match=r"router hostile-router:.*(failed: hostile.py, line|there are|engine|holds)"):
        run(workload, *engines, routing=routing)


@pytest.mark.parametrize(("value", "words"), [(-9, "failed: hostile.py, line"), (4, "named tier 4 for engine 1")])
def test_a_scaler_that_fails_or_names_no_tier_ends_the_run(value, words):
    workload = requests(arrival_s=np.arange(6.0), prompt_tokens=[3] * 6, output_tokens=[2] * 6)
    scaler = HOSTILE_SCALER.with_settings(tier=value, since=2)
    with pytest.raises(PolicyError, match=f"scaler hostile-scaler:.* {words}"):
        run(workload, pool("both", 2), scaler=scaler, tiers=(1.0,))


def test_a_gain_function_or_device_model_that_raises_ends_the_run(monkeypatch):
    monkeypatch.setitem(BY_TOKEN, "hostile", hostile.hostile_gain)
    monkeypatch.setattr("servegym.simulator.policies.gains.FUNCTIONS", BY_TOKEN)
    made = scenario(HOSTILE, gain=Gain("hostile", first_weight=1.0))
    with pytest.raises(PolicyError, match=r"gain function hostile failed: hostile.py, line .*no more gains"):
        Simulation(made).run()


@scheduler
def reads_clients(context, ranks, limits):
    requests, queue, state = context.requests, context.queue, context.state
    for position in range(queue.shape[0]):
        ranks[position].tier, ranks[position].key = 0, state.clients[requests[queue[position]].client, 0]


@router
def reads_its_state(context, request, route):
    state = context.state
    route.engine = int(state[0, 0])


@kernel
def first_of(table):
    return int(table[0, 0])


@kernel
def first_engine(table):
    return 0


@router
def hands_its_state_to_a_reader(context, request, route):
    state = context.state
    route.engine = first_of(state)


@router
def hands_its_state_on(context, request, route):
    state = context.state
    route.engine = first_engine(state)


def test_state_that_is_handed_on_is_used_where_the_kernel_uses_it():
    with pytest.raises(PolicyError, match=r"router mine uses state \(test_hostile.py, line [0-9]+\).*engine="):
        Policy("mine", "router", "", "", hands_its_state_to_a_reader)
    Policy("mine", "router", "", "", hands_its_state_on)


def test_state_that_is_not_declared_is_refused_when_the_policy_is_made():
    with pytest.raises(PolicyError, match=r"mine uses state.clients \(test_hostile.py, line [0-9]+\).*client="):
        Policy("mine", "scheduler", "", "", reads_clients)
    with pytest.raises(PolicyError, match=r"router mine uses state \(test_hostile.py, line [0-9]+\).*engine="):
        Policy("mine", "router", "", "", reads_its_state)
    Policy("mine", "scheduler", "", "", reads_clients, state=StateFields(client=("served",)))
