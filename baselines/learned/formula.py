"""Formulas as policies: the urgent requests of a base scheduler are ranked by a formula, the highest value first.

Who is urgent, who is left out, limits and victims stay the base's. The formula `value` is the base.
"""

from __future__ import annotations

import dataclasses

from servegym.baselines.learned.derived import LearnedPolicy, check_base, derived
from servegym.baselines.learned.expression import Expression, parsed
from servegym.baselines.learned.ranking import nothing, specialised_on
from servegym.baselines.learned.stack_machine import (
    CONSTANT_S,
    FEATURES,
    PACE_S,
    WORK_S,
    evaluate,
    write_features,
)
from servegym.errors import PolicyError
from servegym.simulator.batches import EMPTY_BATCH
from servegym.simulator.policies import Policy
from servegym.simulator.signatures import scheduler
from servegym.simulator.types import LEAVE_OUT

HEAD = "formula"


@scheduler
def base(context, ranks, limits):
    """Stands for the base scheduler."""


then = nothing
PARAMETERS, URGENT = 0, 0  # stand for how many the base has, and the tier of urgent requests


@scheduler
def formula_scheduler(context, ranks, limits):
    """Its numbers: the base's parameters, the program; memory: the stack, the features."""
    base(context, ranks, limits)
    estimator, requests, queue = context.estimator, context.requests, context.queue
    program = context.parameters[PARAMETERS:]
    size = int(program[0])
    steps, stack, features = program[1 : 1 + 2 * size], program[1 + 2 * size : 1 + 3 * size], program[1 + 3 * size :]
    estimator.exec_s(requests, queue, estimator.coefficients, ranks)
    work_s, constant_s = 0.0, estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    for position in range(queue.shape[0]):
        if ranks[position].tier < LEAVE_OUT:
            work_s += ranks[position].exec_s
    features[CONSTANT_S], features[WORK_S] = constant_s, work_s
    features[PACE_S] = min(constant_s + work_s, limits.time_budget_s)
    for position in range(queue.shape[0]):
        request, rank = requests[queue[position]], ranks[position]
        if rank.tier == URGENT:
            group = context.state.by_application[request.application]
            write_features(request, rank, group, context.now_s, features)
            rank.key = -evaluate(steps, features, stack)
    then(context, ranks, limits)


def by_formula(base: Policy, formula: Expression | str, name: str = "") -> LearnedPolicy:
    """The base scheduler with its urgent requests in the order of a formula's value, the highest first.

    formula: as `parsed` takes it, of the features of `stack_machine.FEATURES`. Raises PolicyError for one that is none,
    and a base that calls nothing urgent.
    """
    check_base(base, "scheduler")
    if base.urgent_tier is None:
        raise PolicyError(
            f"{base.name} ranks no requests as urgent; the base of a formula should, as expected-gain does"
        )
    expression = parsed(formula) if isinstance(formula, str) else formula
    function = specialised_on(formula_scheduler, base, URGENT=base.urgent_tier)
    return derived(
        HEAD, base, name, function, expression.program(), expression.size + len(FEATURES),
        state=dataclasses.replace(base.state, by_application=True), formula=str(expression),
        doc=f"{base.label}, its urgent requests by {expression}.",
    )  # fmt: skip
