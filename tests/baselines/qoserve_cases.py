"""A decision of qoserve on a queue written by hand, with marks and running statistics as given."""

from typing import Any, NamedTuple

import numpy as np

from servegym.baselines.registry import scheduler
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import LIMITS
from tests.simulator.forming import waiting_for_a_batch


class Decided(NamedTuple):
    tiers: list[int]  # by place
    keys: list[float]
    marks: list[int]  # after the decision: 0 none, 1 relegated
    limits: np.record


def qoserve(**settings: Any) -> Policy:
    return scheduler("qoserve").with_settings(**({"safety": 1} | settings))


def decided(
    policy: Policy,
    *queue: dict,
    marks: tuple[int, ...] = (),
    outputs: tuple[int, ...] = (),
    iterations: tuple[float, int] = (0.0, 0),
    **setting: Any,
) -> Decided:
    """What qoserve decides. marks: before, by place. outputs: output tokens of the finished requests of application 0.

    iterations: seconds that ended iterations took, and the tokens computed in them. setting: of `waiting_for_a_batch`.
    """
    simulation = waiting_for_a_batch(policy, *queue, **setting)
    arrays, n = simulation.arrays, len(queue)
    arrays.state.requests[: len(marks), 0] = marks
    if outputs:
        group = arrays.state.by_application[0, 0]
        group["finished"], group["mean_output_tokens"] = len(outputs), np.mean(outputs)
        group["squared_deviations"] = np.var(outputs) * len(outputs)
    engine = arrays.engines[0]
    engine["busy_s"], engine["scheduled_tokens"] = iterations
    limits = np.zeros(1, LIMITS)
    context = simulation.scheduler_context(0, float(arrays.status[0].now_s))
    policy.function(context, arrays.ranks, limits[0])
    here = context.state
    plan = arrays.ranks[:n]
    return Decided(plan["tier"].tolist(), plan["key"].tolist(), here.requests[:n, 0].astype(int).tolist(), limits[0])
