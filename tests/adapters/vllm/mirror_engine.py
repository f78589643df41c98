"""An engine that does exactly what a mirror plans, to compare the mirror's decisions with the simulator's."""

import numpy as np

from servegym.adapters.vllm.mirror import Mirror
from servegym.adapters.vllm.terms import Terms
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.settings import clients_of
from servegym.simulator.records.types import NO_LIMIT
from tests.timelines import Iteration

MOST = int(NO_LIMIT)


def terms_of(request: np.record, client: int = 0) -> Terms:
    """The terms of a request of a workload, and its client (`settings.clients_of`)."""
    names = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "weight", "predicted_output_tokens")
    numbers = {name: float(request[name]) for name in names}
    groups = {name: int(request[name]) for name in ("urgency", "application")}
    return Terms(**numbers, **groups, client=client, session_tokens=0, malformed=0)


def mirror_of(scenario: Scenario) -> Mirror:
    """A mirror of the one engine of a scenario."""
    deployment, first = scenario.deployment, scenario.gain.first_weight
    table = scenario.workload.table
    return Mirror(
        scenario.scheduler,
        scenario.scheduler.numbers(scenario.fact),
        deployment.estimator,
        deployment.total_blocks,
        deployment.block_tokens,
        int(deployment.watermark * deployment.total_blocks),
        scenario.correction,
        float(table["prompt_tokens"].mean() / table["output_tokens"].mean()) if first is None else first,
    )


def obey(scenario: Scenario) -> tuple[list[Iteration], Mirror]:
    """Serve the scenario's requests by the plans of a mirror; the device is the scenario's, without disturbance."""
    mirror, table, device = mirror_of(scenario), scenario.workload.table, scenario.deployment.device
    steps: list[Iteration] = []
    clients = clients_of(table)
    row_of: dict[int, int] = {}
    request_of: dict[int, int] = {}
    computed = np.zeros(len(table), int)
    emitted = np.zeros(len(table), int)
    now_s, arrived = 0.0, 0
    free = mirror.total_blocks
    held = np.zeros(len(table), int)
    while arrived < len(table) or row_of:
        if not row_of:
            now_s = max(now_s, float(table["arrival_s"][arrived]))
        while arrived < len(table) and table["arrival_s"][arrived] <= now_s:
            sent = table[arrived]
            terms = terms_of(sent, int(clients[arrived]))
            row = mirror.add(float(sent.arrival_s), int(sent.prompt_tokens), MOST, int(sent.priority), terms)
            mirror.join(row)
            row_of[arrived], request_of[row] = row, arrived
            arrived += 1
        plan = mirror.plan(now_s, free, MOST, MOST, MOST)
        assert plan is not None
        evicted = [request_of[row] for row in plan.evicted]
        computed[evicted] = 0
        held[evicted] = 0
        batch = [(request_of[row], int(tokens)) for row, tokens in zip(plan.rows, plan.tokens, strict=True)]
        for request, tokens in batch:
            computed[request] += tokens
            held[request] = -(-computed[request] // scenario.deployment.block_tokens)
        free = mirror.total_blocks - int(held.sum())
        assert free >= 0
        ids = [request for request, _ in batch]
        out = emitted[ids].astype("i4")
        estimate_s, scale = mirror.settle(plan.evicted, plan.rows, plan.tokens, computed[ids].astype("i4"), out, now_s)
        took_s = float(device.batch_s(mirror.run.sums[0], device.coefficients))
        steps.append(Iteration(0, now_s, now_s + took_s, batch, evicted, mirror.total_blocks - free))
        ended_s = now_s + took_s
        mirror.correct(estimate_s, scale, ended_s - now_s)
        now_s = ended_s
        talking = [r for r in ids if computed[r] == table["prompt_tokens"][r] + emitted[r]]
        emitted[talking] += 1
        rows = np.array([row_of[r] for r in talking], "i4")
        mirror.deliver(rows, np.ones(len(rows), "i4"), emitted[talking].astype("i4"), now_s)
        done = [r for r in talking if emitted[r] == table["output_tokens"][r]]
        held[done] = 0
        free = mirror.total_blocks - int(held.sum())
        if done:
            mirror.leave([row_of.pop(r) for r in done], finished=True)
    return steps, mirror
