"""EDF and SJF by hand (ProServe, section 3.2)."""

import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.records.types import LIMITS
from tests.simulator.forming import decode, formed, linear, ranked, state

pytestmark = pytest.mark.nojit


def queue() -> list[dict]:
    """Next deadlines 20; 2 + 10 = 12; 5 + 2 x 3 = 11 (two tokens out). Exec 3, 4 and 1 s."""
    return [
        state(3, ttft_slo_s=20),
        state(4, ttft_slo_s=10, arrival_s=2.0),
        state(9, 2, 10, ttft_slo_s=5, tpot_slo_s=3),
    ]


def test_edf_ranks_by_the_deadline_of_the_next_token():
    assert ranked(scheduler("edf"), *queue(), now_s=6.0).ranks == [(0, 20), (0, 12), (0, 11)]
    assert formed(scheduler("edf"), *queue()).batch == [(2, 1), (1, 4), (0, 3)]


def test_edf_takes_the_ttlt_deadline_of_a_ttlt_class():
    rows = [state(3, ttft_slo_s=5), state(3, 4, 6, ttft_slo_s=1, tpot_slo_s=1, ttlt_slo_s=30, arrival_s=2.0)]
    assert ranked(scheduler("edf"), *rows).ranks == [(0, 5), (0, 32)]


def test_sjf_ranks_by_what_is_left_to_compute():
    assert ranked(scheduler("sjf"), *queue()).ranks == [(0, 3), (0, 4), (0, 1)]
    assert formed(scheduler("sjf"), *queue()).batch == [(2, 1), (0, 3), (1, 4)]
    # 2 of 6 computed: 4 x (0.5 x 4 + 0.25 x 2 + 1) = 14; a decode of 5: 0.125 x 5 + 2; evicted, 3 + 2: 5 x (2.5 + 1).
    model = linear(a_p=0.5, b_p=0.25, c_p=1, a_d=0.125, b_d=2, t_c=99)
    rows = [state(6, 0, 2), state(4, 2, 5), state(3, 2)]
    assert [key for _, key in ranked(scheduler("sjf"), *rows, model=model).ranks] == [14, 2.625, 17.5]


@pytest.mark.parametrize("name", ["edf", "sjf"])
def test_budgets(name):
    limits = ranked(scheduler(f"{name}:max_num_batched_tokens=7"), *queue()).limits
    assert (limits.max_num_batched_tokens, limits.sequence_budget) == (7, 0)  # 0: it is not set
    limits = ranked(scheduler(f"{name}:max_num_batched_tokens=7,batch_size=2"), *queue()).limits
    assert (limits.max_num_batched_tokens, limits.sequence_budget) == (0, 2)
    assert ranked(scheduler(name), *queue()).limits.max_num_batched_tokens == 512
    for field in set(LIMITS.names) - {"max_num_batched_tokens", "sequence_budget"}:
        assert limits[field] == 0, f"{field} is left as it is by default"


def test_batches_within_a_budget():
    assert formed(scheduler("edf:max_num_batched_tokens=4"), *queue()).batch == [(2, 1), (1, 3)]
    assert formed(scheduler("sjf:max_num_batched_tokens=5"), *queue()).batch == [(2, 1), (0, 3), (1, 1)]
    assert formed(scheduler("sjf:batch_size=2"), *queue()).batch == [(2, 1), (0, 3)]
    assert formed(scheduler("edf:batch_size=1"), *queue()).batch == [(2, 1)]


@pytest.mark.parametrize("name", ["edf", "sjf"])
def test_a_tie_goes_to_the_earlier_place(name):
    rows = [decode(), state(1), decode()]  # deadlines 2000, 1000, 2000; exec 1, 1, 1
    batch = formed(scheduler(name), *rows).batch
    assert batch == ([(1, 1), (0, 1), (2, 1)] if name == "edf" else [(0, 1), (1, 1), (2, 1)])


@pytest.mark.parametrize("name", ["edf", "sjf"])
def test_what_would_run_last_gives_up_memory_first(name):
    rank = ranked(scheduler(name), *queue())
    assert rank.victim_ranks == rank.ranks
    # 0 (deadline 1000 + 1 x 1000, exec 1 s) is as late as 1; the later place goes.
    assert formed(scheduler(name), decode(), decode(), blocks=6) == ([(0, 1)], [1], 2)


def test_edf_with_all_deadlines_in_the_past_still_runs_the_earliest_first():
    rows = [state(3, ttft_slo_s=2), state(3, ttft_slo_s=1)]
    assert formed(scheduler("edf"), *rows, now_s=500.0).batch == [(1, 3), (0, 3)]
