"""The scaler pd-ratio: against the reference written from docs/systems/pd_ratio.md, and cases worked by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from servegym.baselines.registry import scaler
from servegym.baselines.scalers.pd_ratio import PHASES_S, TURNED_S, TURNS, stays_s
from servegym.simulator.compilation.digests import plain_function
from servegym.simulator.records.types import ROLE_DECODE, ROLE_PREFILL
from tests.cluster_checks import both_routers, run_both_scaled
from tests.cluster_scenes import random_scene, sensible_scheduler, with_role_changes
from tests.reference.pd_ratio import PdRatio
from tests.seeds import seeds
from tests.simulator.fleets import run
from tests.simulator.test_cluster_transfers import lines, pool, requests


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_with_the_reference(seed: int) -> None:
    """Some pools may change their roles, others not, some do both; with failures where the seed is odd."""
    random = np.random.default_rng([seed, 80])
    name = ("min-load", "round-robin", "min-tokens")[seed % 3]
    while True:
        scene = random_scene(random, *both_routers(name, {}), sensible_scheduler)
        if any(pool.ours.role == "decode" for pool in scene.pools):
            break
    scene.pools = [with_role_changes(random, pool) if random.random() < 0.8 else pool for pool in scene.pools]
    high, low = random.choice([0.02, 0.2, 1.0], 2), random.choice([0.1, 0.5, 4.0], 2)
    settings = {
        "interval_s": float(random.choice([2.0**-6, 2.0**-4, 0.25])),
        "window_s": float(random.choice([2.0**-6, 0.25, 1.0])),
        "prefill_high": float(high[0]),
        "decode_high": float(high[1]),
        "prefill_low": float(low[0]),
        "decode_low": float(low[1]),
        "rest_checks": int(random.integers(3)),
        "least_prefill": int(random.choice([1, 1, 2])),
        "least_decode": int(random.choice([1, 1, 2])),
        "outlast": float(random.choice([0.0, 0.1, 1.5])),
        "first_s": float(random.choice([0.0, 0.25, 1e9])),
    }
    run_both_scaled(scene, random, seed, scaler("pd-ratio").with_settings(**settings), PdRatio(**settings))


def ratio(**settings: float):
    return scaler("pd-ratio").with_settings(**({"interval_s": 1.0, "window_s": 1.0, "rest_checks": 0} | settings))


@pytest.mark.nojit
def test_a_queue_of_prompts_gets_a_decode_engine():
    """A request takes 1 s a token, with SLOs of 1000 s. At 1 s three prompts of 300 tokens are at engine 0: a load
    of .9. Of two decode engines without work the last changes its role at once, and takes the fourth prompt at 3 s."""
    workload = requests(arrival_s=[0.0, 0.0, 0.0, 3.0], prompt_tokens=[300, 300, 300, 1], output_tokens=1)
    pools = pool("prefill", total_blocks=1000), pool("decode", 2, total_blocks=1000, role_change_s=2.0)
    simulation = run(workload, *pools, routing="min-load", scaler=ratio(prefill_high=0.89))
    assert lines(simulation, "role", "arrival")[3:] == [(1.0, "role", 2, -1, ROLE_PREFILL), (3.0, "arrival", 2, 3, 0)]
    simulation = run(workload, *pools, routing="min-load", scaler=ratio(prefill_high=0.91))
    assert lines(simulation, "role") == []


@pytest.mark.nojit
@pytest.mark.parametrize(("now_s", "turns", "phases_s", "stays"), [
    (110.0, 0, 0.0, 50.0),  # no phase has ended; it is expected to last 60 s
    (240.0, 0, 0.0, 140.0),  # it has lasted more than twice that
    (110.0, 2, 80.0, 30.0),  # phases of 40 s
    (160.0, 2, 80.0, -20.0),  # the turn is overdue
    (180.0, 2, 80.0, 80.0),  # twice as long as those: as long again
])  # fmt: skip
def test_how_long_the_mix_is_expected_to_stay(now_s: float, turns: int, phases_s: float, stays: float):
    state = np.zeros((1, 9))
    state[0, TURNED_S], state[0, TURNS], state[0, PHASES_S] = 100.0, turns, phases_s
    context = SimpleNamespace(now_s=now_s, state=state, parameters=ratio().numbers(lambda fact: 1.0))
    assert plain_function(stays_s)(context) == stays


@pytest.mark.nojit
def test_decodes_that_fill_memory_get_a_prefill_engine():
    """Two prompts of 45 tokens end at 46 s, each on its prefill engine. With a token out each has 46 of context: 92 of
    the 100 blocks of the decode engine, as soon as both are sent there."""
    workload = requests(arrival_s=[0.0, 0.0, 150.0], prompt_tokens=[45, 45, 1], output_tokens=[40, 40, 1])
    pools = pool("prefill", 2, role_change_s=0.0), pool("decode")
    for high, changes in ((0.91, 1), (1.8, 0)):
        policy = ratio(decode_high=high, prefill_low=0.2)
        simulation = run(workload, *pools, routing="min-load", scaler=policy)
        changed = lines(simulation, "role")
        assert len(changed) == changes
        if changes:
            assert changed[0][1:] == ("role", 1, -1, ROLE_DECODE)


@pytest.mark.nojit
@pytest.mark.parametrize("settings", [{"least_decode": 2}, {"prefill_high": 100.0}, {"rest_checks": 1000}])
def test_nothing_is_changed_where_it_may_not_be(settings):
    workload = requests(arrival_s=[0.0, 0.0, 0.0, 3.0], prompt_tokens=[300, 300, 300, 1], output_tokens=1)
    pools = pool("prefill", total_blocks=1000), pool("decode", 2, total_blocks=1000, role_change_s=2.0)
    assert lines(run(workload, *pools, routing="min-load", scaler=ratio(**settings)), "role") == []


@pytest.mark.nojit
def test_roles_that_are_fixed_stay():
    workload = requests(prompt_tokens=[300, 300, 300], output_tokens=1)
    pools = pool("prefill", total_blocks=1000), pool("decode", 2, total_blocks=1000)
    assert lines(run(workload, *pools, routing="min-load", scaler=ratio()), "role") == []
