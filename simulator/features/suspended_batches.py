"""Preemptible batches, which are suspended at the end of an operator or a layer and resumed there.

A task is a preemptible batch that has started and is not done; docs/simulation.md, "Preemptible prefill".
"""

import numpy as np

from servegym.simulator.batching.ordering import first_to_run, ranks_before
from servegym.simulator.batching.ranking import rank_queue
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.fleet.routing import report_busy
from servegym.simulator.policies.refusals import are_numbers
from servegym.simulator.records.events import events_left, make_due, note, pop, push, remove
from servegym.simulator.records.random import uniform
from servegym.simulator.records.statuses import BAD_RANKS, GOING_ON, NOT_STARTED, TIMELINE_FULL
from servegym.simulator.records.types import (
    AT_OPERATORS,
    EVENT_BATCH_END,
    EVENT_SUSPENSION,
    IN_TASK,
    LEAVE_OUT,
    NO_LIMIT,
    NOT_PREEMPTIBLE,
    RESUMED,
    SUSPENDED,
)

STREAM = 0x6A697474


@kernel
def is_preemptible_batch(run, engine):
    """Return whether the batch just formed is preemptible: the policy allows it, and all its requests are prefills."""
    return (
        run.limits[0].preemptible != NOT_PREEMPTIBLE
        and run.sums[0].decode_requests == 0.0
        and engine.suspended < run.state.tasks.shape[1]
    )


@kernel
def boundaries_of(engine, preemptible):
    """Return the number of boundaries in a batch, its end included."""
    return engine.preemption.layers * (engine.preemption.operators if preemptible == AT_OPERATORS else 1)


@kernel
def checking_s(run, engine):
    """Return the time of the checks at all boundaries of the batch just formed."""
    if not is_preemptible_batch(run, engine):
        return 0.0
    return engine.preemption.check_s * boundaries_of(engine, run.limits[0].preemptible)


@inlined_kernel
def open_task(run, router_state, e, computing_s):
    """Make the batch just formed by engine e a running task, if it is preemptible, and return whether it is."""
    engine, tasks, entries = run.engines[e], run.state.tasks[e], run.entries[e]
    if not is_preemptible_batch(run, engine):
        return False
    index = 0
    while tasks[index].length > 0:
        index += 1
    task, running = tasks[index], router_state.tasks[e, index]
    task.length, task.leader, task.tokens = engine.batch_length, entries[0].request, run.packing[0].tokens
    task.estimate_s, task.executed_s = engine.batch_estimate_s, 0.0
    running.computing_s, running.moving_s = computing_s, engine.moving_s
    running.boundaries = run.limits[0].preemptible
    for k in range(engine.batch_length):
        r = entries[k].request
        run.requests[r].task = index
        run.outcomes[r].task_tokens, run.outcomes[r].task_position = entries[k].tokens, k
    engine.running_task = index
    running.scale = engine.correction.batch_scale
    schedule_end(run, router_state, e, run.status[0].now_s)
    return True


@kernel
def resume(run, router_state, e):
    """Resume the suspended task packing.resumed_task on engine e, and return the time that it has run before."""
    index = run.packing[0].resumed_task
    engine, queue, entries = run.engines[e], run.queues[e], run.entries[e]
    task = run.state.tasks[e, index]
    found = 0
    for position in range(engine.queue_length - 1, -1, -1):
        if found == task.length:
            break
        r = queue[position]
        if run.requests[r].task == index:
            entry = entries[run.outcomes[r].task_position]
            entry.request, entry.tokens = r, run.outcomes[r].task_tokens
            found += 1
    engine.batch_length = task.length
    engine.running_task = index
    engine.suspended -= 1
    engine.batch_estimate_s = task.estimate_s
    engine.correction.batch_scale = router_state.tasks[e, index].scale
    engine.preemption.owed_s = engine.moving_s
    engine.moving_s = router_state.tasks[e, index].moving_s
    if run.status[0].recording:
        note(run, RESUMED, e, task.leader, index, task.executed_s)
    schedule_end(run, router_state, e, run.status[0].now_s)
    return task.executed_s


@kernel
def schedule_end(run, router_state, e, now_s):
    """Schedule the end of the engine's running task, or its suspension if its time slice ends before."""
    index = run.engines[e].running_task
    task, running = run.state.tasks[e, index], router_state.tasks[e, index]
    end_s, slice_s = running.moving_s + running.computing_s, run.limits[0].slice_s
    if slice_s < np.inf:
        late_s = lateness_s(run.engines[e])
        stop_s = boundary_s(run, router_state, e, task.executed_s + slice_s - late_s, task.executed_s)
        if stop_s + late_s < end_s:
            running.stop_s = stop_s
            push(run.events, run.status[0], now_s + (stop_s + late_s - task.executed_s), EVENT_SUSPENSION, e)
            return
    push(run.events, run.status[0], now_s + (end_s - task.executed_s), EVENT_BATCH_END, e)


@kernel
def lateness_s(engine):
    """Return how late the engine is at its next boundary, as its tensor parallel ranks do not get there together."""
    return (
        engine.preemption.jitter_s * uniform(0, STREAM, engine.totals.suspensions)
        if engine.preemption.jitter_s > 0.0
        else 0.0
    )


@kernel
def boundary_s(run, router_state, e, least_s, after_s):
    """Return the time run by the running task at its first boundary at or after least_s and after after_s."""
    engine = run.engines[e]
    running = router_state.tasks[e, engine.running_task]
    moving_s, computing_s, layers = running.moving_s, running.computing_s, engine.preemption.layers
    done = (least_s - moving_s) * layers / computing_s if computing_s > 0.0 else np.inf
    layer = max(0, int(min(max(done, 0.0), float(layers))) - 1) if done < np.inf else layers
    at_operators = running.boundaries == AT_OPERATORS
    sums, operators, whole = batch_of(run, e), router_state.operators[engine.pool], 0.0
    for k in range(engine.preemption.operators):
        whole += operator_s(operators[k], sums)
    while layer < layers:
        part = 0.0
        for k in range(engine.preemption.operators if at_operators else 1):
            part += operator_s(operators[k], sums)
            share = part / whole if at_operators and whole > 0.0 else 1.0
            at_s = moving_s + (layer + share) * computing_s / layers
            if at_s >= least_s and at_s > after_s:
                return at_s
        layer += 1
    return np.inf


@kernel
def operator_s(coefficients, sums):
    """Return the time of an operator for a batch, of which only the share in its layer is used."""
    tokens, squared, cached = sums
    return coefficients[0] * tokens + coefficients[1] * squared + coefficients[2] * cached + coefficients[3]


@kernel
def batch_of(run, e):
    """Return (sum lq, sum lq^2, sum lq lkv) of the running batch of engine e."""
    tokens, squared, cached = 0.0, 0.0, 0.0
    for k in range(run.engines[e].batch_length):
        lq = float(run.entries[e, k].tokens)
        tokens += lq
        squared += lq * lq
        cached += lq * run.requests[run.entries[e, k].request].computed_tokens
    return tokens, squared, cached


@kernel
def is_task_preemptible(engine):
    """Return whether a task runs that is not to be suspended yet."""
    return engine.running_task >= 0 and engine.preemption.suspending == 0


@kernel
def check_preemption(run, router_state, decider, e):
    """Hold a scheduling round while a task of engine e runs: suspend it if another request ranks first.

    Returns NOT_STARTED, or BAD_RANKS.
    """
    engine, now_s = run.engines[e], run.status[0].now_s
    engine.rounds += 1
    if not rank_queue(run, decider, e, now_s) or not are_numbers(run.ranks, run.limits[0].listed, engine.queue_length):
        return BAD_RANKS
    first = run.queues[e][first_to_run(run.ranks, run.limits[0], engine.queue_length)]
    if run.requests[first].task != engine.running_task:
        preempt(run, router_state, e, now_s)
    return NOT_STARTED


@kernel
def preempt(run, router_state, e, now_s):
    """Schedule the suspension of the running task of engine e at its next boundary."""
    engine, status = run.engines[e], run.status[0]
    task, running = run.state.tasks[e, engine.running_task], router_state.tasks[e, engine.running_task]
    ran_s, late_s = task.executed_s + (now_s - engine.batch_start_s), lateness_s(engine)
    stop_s = boundary_s(run, router_state, e, ran_s - late_s, task.executed_s)
    if stop_s + late_s >= running.moving_s + running.computing_s:
        return
    running.stop_s = stop_s
    at_s = max(now_s, engine.batch_start_s + (stop_s + late_s - task.executed_s))
    remove(run.events, status, EVENT_BATCH_END, e)
    remove(run.events, status, EVENT_SUSPENSION, e)
    push(run.events, status, at_s, EVENT_SUSPENSION, e)
    engine.preemption.suspending = 1
    running.blocked_since_s = now_s


@kernel
def suspend_next(run, router_state):
    """Handle the first event, the suspension of a running task. Returns GOING_ON, or TIMELINE_FULL."""
    status, e = run.status[0], run.events[0].index
    if status.recording and events_left(run) < 1:
        return TIMELINE_FULL
    pop(run.events, status)
    suspend(run, router_state, e, status.now_s)
    if run.engines.shape[0] > 1:
        report_busy(run, router_state, e, status.now_s, status.now_s)
    if run.engines[e].queue_length > 0:
        make_due(run, e)
    return GOING_ON


@kernel
def suspend(run, router_state, e, now_s):
    """Suspend the running task of engine e at a boundary."""
    engine = run.engines[e]
    task = run.state.tasks[e, engine.running_task]
    ran_s = now_s - engine.batch_start_s
    running = router_state.tasks[e, engine.running_task]
    if engine.preemption.suspending == 1:
        blocking_s = now_s - running.blocked_since_s
        engine.totals.suspensions += 1
        engine.totals.blocking_s += blocking_s
        engine.totals.longest_blocking_s = max(engine.totals.longest_blocking_s, blocking_s)
    task.executed_s = running.stop_s
    engine.busy_s += ran_s
    if run.status[0].recording:
        note(run, SUSPENDED, e, task.leader, engine.running_task, ran_s)
    engine.batch_length = 0
    engine.running_task = -1
    engine.preemption.suspending = 0
    engine.suspended += 1
    engine.preemption.resuming = 1
    take_owed(engine)


@kernel
def take_owed(engine):
    """Set moving_s to the KV moving time that was found when a task was resumed, for the iteration after it."""
    engine.moving_s, engine.preemption.owed_s = engine.preemption.owed_s, 0.0


@kernel
def count_resumption(engine):
    """Do not count a round right after a suspension, which is part of the round that caused it."""
    engine.rounds -= engine.preemption.resuming
    engine.preemption.resuming = 0


@kernel
def close_task(run, e):
    """End the running task of engine e, done or lost, and return the time that it ran before its latest start."""
    engine = run.engines[e]
    task = run.state.tasks[e, engine.running_task]
    executed_s = task.executed_s
    task.length = 0
    for k in range(engine.batch_length):
        run.requests[run.entries[e, k].request].task = -1
    engine.running_task = -1
    engine.preemption.suspending = 0
    return executed_s


@kernel
def close_all(run, e):
    """End all tasks of engine e, which are lost."""
    engine, queue = run.engines[e], run.queues[e]
    for position in range(engine.queue_length):
        run.requests[queue[position]].task = -1
    for index in range(run.state.tasks.shape[1]):
        run.state.tasks[e, index].length = 0
    engine.running_task = -1
    engine.preemption.suspending, engine.suspended, engine.preemption.resuming = 0, 0, 0


@kernel
def find_suspended_task(run, e):
    """Return whether the first-ranked request is in a suspended task; if not, keep requests in tasks out of the batch.

    Sets packing.resumed_task to the task of the first-ranked request in any; -1 if the policy has left out all of them
    (`find_excluded_task`).
    """
    length, ranks, queue, requests = run.engines[e].queue_length, run.ranks, run.queues[e], run.requests
    packing, limits, members, found, first = run.packing[0], run.limits[0], run.order[0], 0, -1
    packing.resumed_task = requests[queue[first_to_run(ranks, limits, length)]].task
    if packing.resumed_task >= 0:
        return True
    for k in range(min(limits.listed, length)):
        position = k if limits.listed >= NO_LIMIT else ranks[k].listed
        if ranks[position].tier < LEAVE_OUT and requests[queue[position]].task >= 0:
            members[found] = position
            found += 1
            if first < 0 or ranks_before(ranks, position, first):
                first = position
    if first >= 0:
        packing.resumed_task = requests[queue[first]].task
    for position in members[:found]:
        ranks[position].tier = IN_TASK
    return False


@kernel
def find_excluded_task(run, e):
    """Do as `find_suspended_task`, with requests in tasks that the policy has left out, which is the common case."""
    length, ranks, queue, requests = run.engines[e].queue_length, run.ranks, run.queues[e], run.requests
    packing, first = run.packing[0], -1
    for position in range(length):
        if requests[queue[position]].task >= 0 and (first < 0 or ranks_before(ranks, position, first)):
            first = position
    if packing.resumed_task < 0:
        packing.resumed_task = requests[queue[first]].task
    for position in range(length):
        if requests[queue[position]].task >= 0:
            ranks[position].tier = IN_TASK


@kernel
def blocks_in_tasks(run, e):
    """Return the blocks of requests in suspended tasks."""
    blocks = 0
    if run.engines[e].suspended > 0:
        for position in range(run.engines[e].queue_length):
            request = run.requests[run.queues[e][position]]
            if request.task >= 0:
                blocks += request.blocks
    return blocks
