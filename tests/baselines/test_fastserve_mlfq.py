"""FastServe's queue by hand: join at the level the prefill fits, sink as quanta are used up, rise when starving.

A batch takes 1 s and 1 s a token; the quantum is 1 s, so level k has 2^k s.
"""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.fastserve_mlfq import (
    BUSY_THEN_S,
    ENTERED_S,
    LEVEL,
    PROGRESS,
    USED_S,
    WAITING_SINCE_S,
)
from servegym.simulator.inputs.deployment import HostMemory
from servegym.simulator.records.types import NO_LIMIT
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import decode, formed, linear, moved, ranked, state, waiting_for_a_batch
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit

NEVER_S = 1e6  # no promotion in sight


def mlfq(**settings):
    return scheduler("fastserve-mlfq").with_settings(**({"quantum_s": 1.0, "promote_after_s": NEVER_S} | settings))


def levels(*rows: dict, **setting) -> list[int]:
    return [level for level, _ in ranked(mlfq(), *rows, **setting).ranks]


def known(policy, *rows: dict, **setting) -> Simulation:
    """At a decision, with requests that have been ranked before: level, used_s, entered_s, since_s, was (progress).

    The last iteration took 2 s.
    """
    simulation = waiting_for_a_batch(policy, *rows, **setting)
    arrays = simulation.arrays
    arrays.engines[0].busy_s, arrays.state.engines[0, BUSY_THEN_S] = 12.0, 10.0
    for r, row in enumerate(rows):
        progress = row["computed"] + row.get("kept", 0) + row["emitted"]
        arrays.state.requests[r] = (1, row["level"], row.get("used_s", 0), row.get("entered_s", 0),
                                    row.get("since_s", 0), row.get("was", progress))  # fmt: skip
    return simulation


def after(policy, *rows: dict, **setting) -> Simulation:
    """The same once a batch is formed."""
    simulation = known(policy, *rows, **setting)
    simulation.step()
    return simulation


def of(simulation: Simulation, field: int) -> list[float]:
    return simulation.arrays.state.requests[:, field].tolist()


# Skip-join


def test_a_request_joins_at_the_first_level_that_holds_its_prefill():
    # 1 s + a token a second: 2, 3, 4, 5, 8, 9 s need 2, 4, 4, 8, 8, 16 s.
    assert levels(*[state(prompt) for prompt in (1, 2, 3, 4, 7, 8)]) == [1, 2, 2, 3, 3, 4]
    half = linear(c_p=0.25, b_d=0.25, t_c=0.25)
    assert levels(state(1), state(3), state(4), model=half) == [0, 0, 1]


def test_levels_have_an_end():
    assert levels(state(10), model=linear(c_p=1e300, b_d=1, t_c=1)) == [62]


def test_within_a_level_by_entry_then_by_place():
    rows = [state(3, arrival_s=2.0), state(2, arrival_s=1.0), state(3, arrival_s=2.0), state(1, arrival_s=3.0)]
    rank = ranked(mlfq(), *rows, now_s=5.0)
    assert rank.ranks == [(2, 2), (2, 1), (2, 2), (1, 3)] and rank.victim_ranks == rank.ranks
    assert [r for r, _ in formed(mlfq(), *rows, now_s=5.0).batch] == [3, 1, 0, 2]


# Use and demotion


def test_what_ran_is_charged_the_whole_iteration_and_no_other():
    # The first got its token (progress 3 -> 4), the second was passed over.
    rows = [decode(level=3, was=2, used_s=1.5), decode(level=3, used_s=1.5, since_s=4.0)]
    simulation = after(mlfq(), *rows, now_s=20.0)
    assert of(simulation, USED_S) == [3.5, 1.5] and of(simulation, LEVEL) == [3, 3]
    assert of(simulation, WAITING_SINCE_S) == [20, 4]
    assert simulation.arrays.state.engines[0, BUSY_THEN_S] == 12


def test_a_quantum_used_up_is_a_level_down():
    # Level 2 has 4 s: 2 + 2 are all of it, 1.75 + 2 are not. Level 0 has 1 s, and one level is all one falls.
    rows = [decode(level=2, was=2, used_s=2.0), decode(level=2, was=2, used_s=1.75), decode(level=0, was=2)]
    simulation = after(mlfq(), *rows, now_s=20.0)
    assert of(simulation, LEVEL) == [3, 2, 1] and of(simulation, USED_S) == [0, 3.75, 0]
    assert of(simulation, ENTERED_S) == [20, 0, 20]
    # So the demoted one runs behind a request of its new level that was there.
    assert simulation.arrays.ranks["tier"][:3].tolist() == [3, 2, 1]
    assert simulation.arrays.ranks["key"][:3].tolist() == [20, 0, 20]


def test_the_way_down_of_one_request():
    # 2 s an iteration; prefill at level 1 (2 s): used up at once. Level 2: 2 iterations. Level 3: 4.
    simulation = Simulation(scene(requests(prompt_tokens=[1], output_tokens=[9]), mlfq()))
    seen = []
    while simulation.step():
        seen.append(int(simulation.arrays.state.requests[0, LEVEL]))
    # A level is written when a batch is formed, so each step sees that of the batch before.
    assert seen == [0, 1, 2, 2, 3, 3, 3, 3, 4]


def test_an_evicted_request_did_not_run():
    # It held 3 tokens and has lost them; what it kept in host memory is still progress.
    rows = [state(3, 1, 0, evicted=1, level=2, was=4), state(3, 1, kept=3, evicted=2, level=2, was=3)]
    simulation = after(mlfq(), *rows, now_s=9.0, host=HostMemory(10, 0.0, 0.0))
    assert of(simulation, USED_S) == [0, 2]


def test_ranking_twice_charges_once():
    # All 12 blocks are in use. The prefill, which ranks first, lacks 4 blocks and may not evict; the decode lacks one,
    # is last itself and gives up its 7. Nobody runs so far: the batch is formed anew, and the prefill has its blocks.
    rows = [state(9, 0, 5, level=4, was=4), state(7, 1, 7, level=5, was=7)]
    simulation = after(mlfq(), *rows, blocks=12, now_s=9.0)
    assert simulation.arrays.requests["evicted"].tolist() == [0, 1]
    assert of(simulation, USED_S) == [2, 2] and of(simulation, PROGRESS) == [5, 1]


# Promotion


def test_what_waits_long_enough_goes_to_the_top():
    rows = [state(3, level=5, since_s=6.0, used_s=3.0), state(3, level=5, since_s=6.5, used_s=3.0)]
    simulation = after(mlfq(promote_after_s=3.0), *rows, now_s=9.0)
    assert of(simulation, LEVEL) == [0, 5] and of(simulation, USED_S) == [0, 3]
    assert of(simulation, ENTERED_S) == [9, 0]


def test_at_the_top_nothing_changes_by_waiting():
    simulation = after(mlfq(promote_after_s=3.0), state(3, level=0, since_s=1.0, used_s=0.5, entered_s=1.0), now_s=9.0)
    assert of(simulation, ENTERED_S) == [1] and of(simulation, USED_S) == [0.5]


def test_what_ran_in_the_last_iteration_does_not_starve():
    simulation = after(mlfq(promote_after_s=3.0), decode(level=5, was=2, since_s=1.0), now_s=9.0)
    assert of(simulation, LEVEL) == [5] and of(simulation, WAITING_SINCE_S) == [9]


def test_waiting_counts_from_the_arrival_but_not_at_first_sight():
    assert ranked(mlfq(promote_after_s=3.0), state(3, arrival_s=-50.0)).ranks == [(2, -50)]
    simulation = waiting_for_a_batch(mlfq(), state(3, arrival_s=-50.0))
    simulation.step()
    assert of(simulation, WAITING_SINCE_S) == [-50]


def test_starvation_ends():
    """A long prompt behind a stream of short ones, one request a batch: it runs only because it is promoted."""
    n = 40
    columns = {"arrival_s": [0.0, *(2.0 * np.arange(n))], "prompt_tokens": [30] + [1] * n}
    for promote_after_s, first_s in ((NEVER_S, 2.0 * n), (20.0, 20.0)):
        simulation = Simulation(scene(requests(**columns), mlfq(promote_after_s=promote_after_s, batch_size=1)))
        simulation.run()
        assert simulation.arrays.outcomes["admitted_s"][0] == first_s


# Limits and memory


def test_limits():
    limits = ranked(mlfq(max_num_batched_tokens=33, batch_size=5), state(3)).limits
    assert (limits.max_num_batched_tokens, limits.sequence_budget, limits.whole_prompts) == (33, 5, 1)
    # Of three decodes the two best run, the third keeps its memory; prompts run whole or not.
    assert formed(mlfq(batch_size=2), decode(), decode(), decode(), blocks=12) == ([(0, 1), (1, 1)], [], 1)
    assert formed(mlfq(max_num_batched_tokens=9), state(3), state(7), state(6)).batch == [(0, 3), (2, 6)]


def test_behind_a_newcomer_that_finds_no_room_only_holders_run():
    # 8 blocks, 3 held. Of those that wait the first fits, the second finds no room beside it, and the third would.
    rows = [decode(level=6), state(3, level=3), state(3, level=4), state(1, level=5)]
    simulation = after(mlfq(), *rows, blocks=8)
    assert simulation.arrays.limits[0].listed == 2 and simulation.arrays.ranks["listed"][:2].tolist() == [0, 1]
    assert simulation.arrays.requests["blocks"].tolist() == [4, 3, 0, 0]
    # One that is passed over for want of tokens closes the batch to nobody.
    simulation = after(mlfq(max_num_batched_tokens=4), decode(level=2), state(5, level=3), state(2, level=4), blocks=8)
    assert simulation.arrays.limits[0].listed == NO_LIMIT
    assert simulation.arrays.requests["blocks"].tolist() == [4, 0, 2]


def test_with_host_memory_a_new_request_takes_the_place_of_a_lower_level():
    # 7 blocks, 3 held at level 6. A prompt of 5 (6 s: level 3) needs 5 and 4 are free.
    rows = [decode(level=6), state(5, level=3)]
    simulation = after(mlfq(), *rows, blocks=7, host=HostMemory(10, 0.5, 0.25))
    assert simulation.arrays.requests["offloaded_tokens"].tolist() == [3, 0]
    assert simulation.arrays.requests["blocks"].tolist() == [0, 5]
    # From the same level, entered earlier, nothing is taken; without host memory nothing at all.
    for level, host in ((3, HostMemory(10, 0.5, 0.25)), (6, None)):
        simulation = after(mlfq(), decode(level=level, entered_s=-1.0), state(5, level=3), blocks=7, host=host)
        assert simulation.arrays.requests["blocks"].tolist() == [4, 0]


def test_the_last_level_gives_up_its_memory_and_keeps_it_in_host_memory():
    # 7 blocks, two decodes with 3 each: the first takes the free one, the second gives up its 3.
    rows = [decode(arrival_s=-2.0), decode(arrival_s=-1.0)]
    setting = {"blocks": 7, "host": HostMemory(10, 0.5, 0.25)}
    assert moved(mlfq(), *rows, **setting) == (([(0, 1)], [1], 3), [0, 3], 0.75)
    assert moved(mlfq(), *rows, blocks=7).kept == [0, 0]
    # As much as there is room for.
    assert moved(mlfq(), *rows, blocks=7, host=HostMemory(2, 0.5, 0.25)).kept == [0, 2]
