"""Data-parallel ranks that wait for each other: engines of a group start and end every iteration together.

With experts spread over all ranks (expert parallelism) each layer sends tokens between them, so that a step takes each
rank as long as the slowest one. The rules: docs/cluster_rules.md, "Lockstep".
"""

import numpy as np

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.events import make_due, sink
from servegym.simulator.records.types import EVENT_BATCH_END


@kernel
def group_runs(run, engine):
    """Whether the group of an engine is in an iteration that began before this instant."""
    first = engine.lockstep.first
    for e in range(first, first + engine.lockstep.ranks):
        if run.engines[e].batch_length > 0 and run.engines[e].batch_start_s < run.status[0].now_s:
            return True
    return False


@kernel
def make_group_due(run, engine):
    """All engines of a group that have requests may start an iteration, once nothing of the last one runs."""
    first = engine.lockstep.first
    for e in range(first, first + engine.lockstep.ranks):
        if run.engines[e].queue_length > 0:
            make_due(run, e)


@kernel
def end_together(run):
    """The iterations of each group of which an engine is due end with the last of them. All that can has started."""
    after = 0
    for k in range(run.status[0].due):
        engine = run.engines[run.due[k]]
        if engine.lockstep.ranks > 1 and engine.index >= after:
            after = engine.lockstep.first + engine.lockstep.ranks
            delay_ends(run.events, run.status[0].events, engine.lockstep.first, after)


@kernel
def delay_ends(events, count, first, after):
    """Ends of iterations of engines from first to before `after` come at the latest of them. O(count)."""
    latest_s = -np.inf
    for i in range(count):
        if events[i].kind == EVENT_BATCH_END and first <= events[i].index < after:
            latest_s = max(latest_s, events[i].time_s)
    for i in range(count - 1, -1, -1):  # from the last one up, each above a heap
        if events[i].kind == EVENT_BATCH_END and first <= events[i].index < after:
            events[i].time_s = latest_s
        sink(events, count, i)
