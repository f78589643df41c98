"""What is in an engine's queue, and what was gained so far, sampled at equal times of a run."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from experiments.claims.harness.cells import Cell, simulation
from experiments.without_steps import scheduler_without_steps
from servegym.simulator.runs.simulation import Simulation

SAMPLES = 120  # over the time from the first to the last arrival
URGENCY = "slide-batching"  # whose rule says which requests are urgent, whoever schedules them


class Counts(NamedTuple):
    """Requests in a queue. timed_out: the deadline of the next token has passed; urgent and normal are of the
    others, by Algorithm 1 of ProServe. urgent_in_all: urgent, timed out or not."""

    urgent: int
    normal: int
    timed_out: int
    urgent_in_all: int


def serve_sampled(cell: Cell) -> dict[str, Any]:
    """Series over the arrivals of a run: times, counts of the queue, gain so far, and what load was offered.

    The simulation is paused at each time: it runs on from there as if nothing had been, since all that happens up
    to a time is done before that time is reported.
    """
    run = simulation(cell)
    whole, urgency = run.scenario, Urgency(run)
    times_s = np.linspace(0, float(whole.workload.table["arrival_s"][-1]), SAMPLES + 1)[1:]
    counts, gains = [], []
    for time_s in times_s:
        run.scenario = dataclasses.replace(whole, until_s=float(time_s))
        run.run()
        counts.append(urgency.counts(float(time_s)))
        gains.append(float(run.arrays.status[0].gain))
    run.scenario = whole
    summary = run.run().summary
    series = dict(zip(Counts._fields, (list(values) for values in zip(*counts, strict=True)), strict=True))
    return {
        "time_s": times_s.tolist(),
        **series,
        "gain": gains,
        "ideal_gain": summary["ideal_gain"],
        "tdg_ratio": summary["tdg_ratio"],
        "slo_attainment": summary["slo_attainment"],
    }


class Urgency:
    """Which requests of engine 0 are urgent, by the compiled rule of slide-batching itself on arrays of its own."""

    def __init__(self, run: Simulation):
        self.run = run
        self.policy = scheduler_without_steps(URGENCY)
        self.parameters = self.policy.numbers(run.scenario.fact)

    def counts(self, now_s: float) -> Counts:
        """What is queued at a time, running requests included."""
        arrays = self.run.arrays
        urgent = self.run.ranks_of(self.policy, self.parameters, 0, now_s)["tier"] <= self.policy.urgent_tier
        waiting = arrays.requests[arrays.queues[0][: len(urgent)]]
        # simulator.records.requests.next_deadline_s, for a whole queue
        late = waiting["first_deadline_s"] + waiting["num_output_tokens"] * waiting["token_interval_s"] < now_s
        return Counts(int((urgent & ~late).sum()), int((~urgent & ~late).sum()), int(late.sum()), int(urgent.sum()))
