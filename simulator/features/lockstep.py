"""Data parallel ranks in lockstep: the engines of a group start and end each iteration together.

With expert parallelism, each layer sends tokens between all ranks, so that an iteration takes each rank as long as the
slowest one. The rules: docs/cluster_rules.md, "Lockstep".
"""

import numpy as np

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.events import make_due, sink
from servegym.simulator.records.types import EVENT_BATCH_END


@kernel
def group_runs(run, engine):
    """Return whether the group of an engine is in an iteration that began before this instant."""
    first = engine.lockstep.first
    for e in range(first, first + engine.lockstep.ranks):
        if run.engines[e].batch_length > 0 and run.engines[e].batch_start_s < run.status[0].now_s:
            return True
    return False


@kernel
def make_group_due(run, engine):
    """Make all engines of a group that have requests due; they start once the whole group is idle."""
    first = engine.lockstep.first
    for e in range(first, first + engine.lockstep.ranks):
        if run.engines[e].queue_length > 0:
            make_due(run, e)


@kernel
def end_together(run):
    """Let the iterations of each due engine's group end with the last of them. Call it after all have started."""
    after = 0
    for k in range(run.status[0].due):
        engine = run.engines[run.due[k]]
        if engine.lockstep.ranks > 1 and engine.index >= after:
            after = engine.lockstep.first + engine.lockstep.ranks
            delay_ends(run.events, run.status[0].events, engine.lockstep.first, after)


@kernel
def delay_ends(events, count, first, after):
    """Move the ends of iterations of engines first..after-1 to the latest of them, in O(count)."""
    latest_s = -np.inf
    for i in range(count):
        if events[i].kind == EVENT_BATCH_END and first <= events[i].index < after:
            latest_s = max(latest_s, events[i].time_s)
    for i in range(count - 1, -1, -1):  # bottom-up, so that each is above a heap
        if events[i].kind == EVENT_BATCH_END and first <= events[i].index < after:
            events[i].time_s = latest_s
        sink(events, count, i)
