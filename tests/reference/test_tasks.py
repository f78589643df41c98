"""Preemptible prefill, worked by hand: each case with its working (scenes.py has what they are set in)."""

from collections.abc import Callable

import pytest

from servegym.simulator.records.random import uniform

from .engines import Engine
from .requests import INF, Request
from .running import JITTER
from .scenes import SECONDS, row
from .schedulers import Custom
from .simulator import Log, Simulation
from .work import Operators

FOUR_LAYERS = Operators(layers=4)


def urgent_first(preemptible: str | None = "layers", **limits) -> Custom:
    return Custom(lambda r, now_s: (r.priority, r.index), preemptible=preemptible, **limits)


def ran(rows: list[dict], operators: Operators = FOUR_LAYERS, blocks: int = 1000, **limits) -> tuple[Log, Engine]:
    engine = Engine(0, 1, blocks, 0, operators=operators)
    everyone = [Request(index=i, **values) for i, values in enumerate(rows)]
    return Simulation(everyone, [engine], urgent_first(**limits), SECONDS, SECONDS).run(INF), engine


def started(log: Log) -> list[tuple]:
    return [(i.start_s, i.end_s, i.batch) for i in log.iterations]


def changes(log: Log) -> list[tuple]:
    return [(m.kind, m.time_s, m.request) for m in log.moves if m.kind in ("suspended", "resumed")]


def long_and(arrival_s: float, **more) -> list[dict]:
    """Serve r0, which takes 8 s (its layers end at 2, 4, 6 and 8), and r1 (2 s), which is ranked first."""
    return [row(7, 1, priority=1), row(1, 1, arrival_s, **more)]


def test_a_round_suspends_a_task_at_its_next_boundary():
    # The round at 3 waits for the end of the second layer: 1 s of blocking. r1 runs from 4 to 6, then the other 4 s.
    log, engine = ran(long_and(3.0))
    assert started(log) == [(0, 10, [(0, 7)]), (4, 6, [(1, 1)])]
    assert changes(log) == [("suspended", 4, 0), ("resumed", 6, 0)]
    assert log.finish_s == [10, 6] and engine.blocking_s == [1]
    # The scheduler is asked at 0, 3 and 6; the asking at 4 comes straight after a suspension.
    assert engine.rounds == 3 and engine.busy_s == 10 and engine.iterations == 2


@pytest.mark.parametrize(("arrival_s", "suspended_s"), [(4, [4]), (5.5, [6]), (6, [6]), (6.5, []), (0, [])])
def test_the_next_boundary_may_be_now_and_the_last_is_the_end(arrival_s, suspended_s):
    log, engine = ran(long_and(arrival_s))
    assert [time_s for kind, time_s, _ in changes(log) if kind == "suspended"] == suspended_s
    assert engine.blocking_s == [time_s - arrival_s for time_s in suspended_s]
    assert engine.rounds == (1 if arrival_s == 0 else 3)  # at 0 both run at once


def test_what_does_not_come_first_suspends_nothing():
    log, engine = ran(long_and(3.0, priority=2))
    assert not changes(log) and engine.rounds == 3 and started(log) == [(0, 8, [(0, 7)]), (8, 10, [(1, 1)])]


def test_while_a_suspension_is_awaited_no_round_is_held():
    # Asked at 0, 2.5 and when r1 and r2 end, at 7: not at 3. Then 4 s of r0.
    log, engine = ran([*long_and(2.5), row(1, 1, 3.0)])
    assert log.finish_s == [11, 7, 7]
    assert engine.blocking_s == [1.5] and engine.rounds == 3


def test_operators_share_a_layer_by_what_they_take():
    # 7 tokens, 49 squared, none cached: 7, 7 x 3 = 21 and 14 + 14 = 28 of 56 are 1/8, 3/8 and 1/2 of each of 2 layers.
    operators = Operators(2, ((1, 0, 5, 0), (3, 0, 0, 0), (0, 2 / 7, 0, 14)))
    places = operators.boundaries([(7, 0, False)], "operators")
    assert places == [(0, 1 / 8), (0, 1 / 2), (0, 1), (1, 1 / 8), (1, 1 / 2), (1, 1)]
    assert operators.boundaries([(7, 0, False)], "layers") == [(0, 1), (1, 1)]
    # Two requests of 3 and 4 tokens, 2 cached before the second: 7, 25, 8.
    operators = Operators(1, ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 40)))
    places = operators.boundaries([(3, 0, False), (4, 2, False)], "operators")
    assert places == [(0, 7 / 80), (0, 32 / 80), (0, 40 / 80), (0, 1)]


def test_checks_take_time():
    # D = 8 + 4 x 0.5 for 2 layers of 2 operators (1/4 and 3/4): boundaries at 1.25, 5, 6.25 and 10.
    operators = Operators(2, ((1, 0, 0, 0), (3, 0, 0, 0)), check_s=0.5)
    log, _ = ran(long_and(1.5), operators, preemptible="operators")
    # r1: 5 to 5 + 2 + 4 x 0.5; r0: 5 s more.
    assert changes(log) == [("suspended", 5, 0), ("resumed", 9, 0)] and log.finish_s == [14, 9]
    # At layers: D = 8 + 2 x 0.5, boundaries at 4.5 and 9; r1 takes 2 + 1.
    log, _ = ran(long_and(1.5), operators)
    assert changes(log) == [("suspended", 4.5, 0), ("resumed", 7.5, 0)] and log.finish_s == [12, 7.5]


def test_jitter():
    log, engine = ran([*long_and(3.0), row(1, 1, 6.75)], Operators(4, jitter_s=0.25))
    late_s = [0.25 * uniform(0, JITTER, n) for n in range(2)]
    # Suspended at 4 + j0; r1 for 2 s; resumed at 6 + j0 with 4 s to go, the next boundary 2 s later (and j1).
    suspended_s = [4 + late_s[0], 8 + late_s[0] + late_s[1]]
    assert [time_s for kind, time_s, _ in changes(log) if kind == "suspended"] == pytest.approx(suspended_s)
    assert engine.blocking_s == pytest.approx([suspended_s[0] - 3, suspended_s[1] - 6.75])
    assert log.finish_s[0] == pytest.approx(12 + sum(late_s))


def test_slices():
    # 3 s after the start the next boundary is at 4; resumed there, 3 s later there is none before the end.
    log, engine = ran([row(7, 1)], slice_s=3.0)
    assert changes(log) == [("suspended", 4, 0), ("resumed", 4, 0)] and log.finish_s == [8]
    assert engine.blocking_s == [] and engine.rounds == 1
    # A slice of nothing ends at each boundary, and r1 waits for the first after it came.
    log, engine = ran(long_and(3.0), slice_s=0.0)
    assert [m for m in changes(log) if m[0] == "suspended" and m[2] == 0] == [("suspended", t, 0) for t in (2, 4, 8)]
    assert engine.blocking_s == [1]
    # A round suspends it sooner than its slice would.
    log, engine = ran(long_and(1.0), slice_s=5.0)
    assert changes(log) == [("suspended", 2, 0), ("resumed", 4, 0)] and log.finish_s[0] == 10


def test_a_batch_with_a_decode_is_no_task():
    # 0-2: r0's prompt. Then it decodes, and from 2 the batch has r1's 7 tokens as well: 2 to 11, what comes.
    operators = Operators(layers=4, check_s=0.25)
    log, engine = ran([row(1, 2), row(7, 1, 1.0, priority=2), row(1, 1, 5.0, priority=-1)], operators)
    assert started(log)[0] == (0, 3, [(0, 1)])  # 2 s and 4 checks
    assert started(log)[1] == (3, 12, [(0, 1), (1, 7)]) and engine.blocking_s == []


def test_members_of_tasks_run_in_no_other_batch_and_give_up_nothing():
    # 9 blocks. r0 and r1 (3 + 4 tokens: 8 s) are a task until 4. r2 (2) runs from 4 to 7 beside it. Then it needs one
    # more, and no request in the queue can give one up but r2 itself; nor does its context fit: the task goes on,
    # for 4 s.
    # Then r2 prefills its 3 tokens, 11 to 15.
    rows = [row(3, 1, priority=1), row(4, 1, priority=1), row(2, 2, 3.0)]
    log, _ = ran(rows, blocks=9)
    assert changes(log) == [("suspended", 4, 0), ("resumed", 7, 0)]
    assert started(log) == [(0, 11, [(0, 3), (1, 4)]), (4, 7, [(2, 2)]), (11, 15, [(2, 3)])]
    assert log.iterations[2].evicted == [2]
    # r2 with 5 tokens does not start with the 2 that would fit: 4 to 8 the task, then 8 to 14.
    log, _ = ran([*rows[:2], row(5, 1, 3.0)], blocks=9)
    assert started(log) == [(0, 8, [(0, 3), (1, 4)]), (8, 14, [(2, 5)])]


def test_several_tasks_are_suspended_at_a_time():
    # r0 (8 s) until 4, r1 (4 s, layers of 1 s) from 4 until 6, r2 (2 s) until 8; then r1's 2 s, then r0's 4.
    rows = [row(7, 1, priority=3), row(3, 1, 3.0, priority=2), row(1, 1, 5.5, priority=1)]
    log, _ = ran(rows)
    assert changes(log) == [("suspended", 4, 0), ("suspended", 6, 1), ("resumed", 8, 1), ("resumed", 10, 0)]
    assert log.finish_s == [14, 10, 8]


def test_what_a_scheduler_sees_of_tasks():
    seen: list[tuple] = []

    class Looking(Custom):
        def decide(self, engine: Engine, now_s: float):
            tasks = [*engine.suspended, *([engine.work] if engine.work else [])]
            seen.append((now_s, [(t.leader.index, len(t.batch), t.tokens, t.estimate_s, t.executed_s) for t in tasks]))
            return super().decide(engine, now_s)

    rank: Callable = lambda r, now_s: (r.priority, r.index)  # noqa: E731
    rows = [row(3, 1, priority=1), row(4, 1, priority=1), row(1, 1, 3.0), row(2, 1, 9.0, priority=2)]
    engine = Engine(0, 1, 100, 0, operators=FOUR_LAYERS)
    everyone = [Request(index=i, **values) for i, values in enumerate(rows)]
    Simulation(everyone, [engine], Looking(rank, preemptible="layers"), SECONDS, SECONDS).run(INF)
    both = (0, 2, 7, 8)
    assert seen[:4] == [(0, []), (3, [(*both, 0)]), (4, [(*both, 4)]), (6, [(*both, 4)])]
    assert seen[4] == (9, [(*both, 4)])  # r3 comes while it runs on
