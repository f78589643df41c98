"""One batch formed from a queue written by hand: what the cases worked on paper are stated in.

Unless a case says otherwise a batch takes 1 s + 1 s a token, a KV block holds one token, SLOs are far off.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from servegym.latency_models.model import LatencyModel
from servegym.simulator.batching.ordering import leave_out_unlisted
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.signatures import scheduler, victims
from servegym.simulator.records.types import BATCH_END, EVICTED, LEAVE_OUT, LIMITS, SCHEDULED
from servegym.simulator.runs.simulation import Simulation

MANY = 10**6
FIELDS = {  # of a request's record, by what a row calls them
    "emitted": "num_output_tokens",
    "computed": "computed_tokens",
    "kept": "offloaded_tokens",
    "predicted": "predicted_output_tokens",
    "urgency": "urgency",
    "admitted": "admitted",
    "evicted": "evicted",
    "arrival_s": "arrival_s",
    "first_token_s": "first_token_s",
    "first_token_gain": "first_token_gain",
    "decode_token_gain": "decode_token_gain",
    "session_tokens": "session_tokens",
}


def linear(**seconds: float) -> LatencyModel:
    """ProServe's form; coefficients that are not given are 0."""
    return LatencyModel.from_values("linear", dict.fromkeys(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), 0.0) | seconds)


SECONDS = linear(c_p=1, b_d=1, t_c=1)


def state(prompt: int, emitted: int = 0, computed: int = 0, admitted: int = 0, evicted: int = 0, **more: Any) -> dict:
    """A request in the middle of a run, with the blocks of what it has computed."""
    progress = {"emitted": emitted, "computed": computed, "admitted": admitted, "evicted": evicted}
    far = {"ttft_slo_s": 1000.0, "tpot_slo_s": 1000.0, "arrival_s": 0.0}
    return {**far, "prompt_tokens": prompt, **progress, **more}


def decode(**more: Any) -> dict:
    """A request that decodes: 3 prompt tokens, all computed, and one token out."""
    return state(3, 1, 3, **more)


def waiting_for_a_batch(
    policy: Policy,
    *queue: dict,
    blocks: int = 1000,
    watermark_blocks: int = 0,
    now_s: float = 0.0,
    block_tokens: int = 1,
    model: LatencyModel = SECONDS,
    host: HostMemory | None = None,
) -> Simulation:
    """A simulation at the decision: the queue is there, and the next step forms its batch.

    first_token_gain and decode_token_gain of a request are its own where given.
    """
    columns = {
        field: [row.get(field, default) for row in queue]
        for field, default in (("ttft_slo_s", 1000.0), ("tpot_slo_s", 1000.0), ("ttlt_slo_s", np.inf),
                               ("prompt_tokens", 1), ("priority", 0), ("weight", 1.0), ("client", 0),
                               ("application", 0))
    }  # fmt: skip
    workload = Workload.from_columns({"arrival_s": 0.0, "output_tokens": 1, **columns})
    deployment = Deployment(
        model, model, total_blocks=max(blocks, 1000), block_tokens=block_tokens, watermark=0.0, host=host
    )
    simulation = Simulation(Scenario(workload, deployment, policy, Gain(first_weight=1.0)), record_timeline=True)
    assert simulation.step()
    arrays = simulation.arrays
    engine, requests = arrays.engines[0], arrays.requests
    for r, row in enumerate(queue):
        for key, field in FIELDS.items():
            if key in row:
                requests[r][field] = row[key]
        requests[r]["first_deadline_s"] += row["arrival_s"]
        arrays.outcomes[r]["output_tokens"] = row["emitted"] + 100
        requests[r]["blocks"] = -(-row["computed"] // block_tokens)
        engine.free_blocks -= requests[r]["blocks"]
    kept_blocks = -(-requests["offloaded_tokens"] // block_tokens)
    engine.free_host_blocks -= kept_blocks.sum()
    engine.running = (requests["blocks"] > 0).sum()
    used = engine.total_blocks - engine.free_blocks
    assert used <= blocks, "the requests hold more than there is"
    engine.total_blocks, engine.free_blocks, engine.watermark_blocks = blocks, blocks - used, watermark_blocks
    status = arrays.status[0]
    status.now_s, status.admissions, status.evictions = now_s, requests["admitted"].max(), requests["evicted"].max()
    return simulation


class Formed(NamedTuple):
    batch: list[tuple[int, int]]  # (place, tokens) in batch order
    evicted: list[int]  # places, in order
    free_blocks: int


class Moved(NamedTuple):
    formed: Formed
    kept: list[int]  # tokens in host memory once the batch is formed, by place
    moving_s: float


def moved(policy: Policy, *queue: dict, **setting: Any) -> Moved:
    """The batch that is formed from a queue, and what was moved for it; keywords of `waiting_for_a_batch`."""
    simulation = waiting_for_a_batch(policy, *queue, **setting)
    whole = simulation.scenario
    simulation.scenario = dataclasses.replace(whole, until_s=simulation.arrays.status[0].now_s)
    simulation.step()  # forms it, and goes no further
    kept, moving_s = (
        simulation.arrays.requests["offloaded_tokens"].tolist(),
        float(simulation.arrays.engines[0].moving_s),
    )
    simulation.scenario = whole
    simulation.step()
    arrays = simulation.arrays
    lines = arrays.timeline[: arrays.status[0].timeline_used]
    (end,) = np.flatnonzero(lines["kind"] == BATCH_END)
    batch = [(int(line.request), int(line.tokens)) for line in lines[:end] if line.kind == SCHEDULED]
    evicted = [int(line.request) for line in lines[:end] if line.kind == EVICTED]
    return Moved(Formed(batch, evicted, int(arrays.engines[0].total_blocks - lines[end].tokens)), kept, moving_s)


def formed(policy: Policy, *queue: dict, **setting: Any) -> Formed:
    """The batch that is formed from a queue; keywords of `waiting_for_a_batch`."""
    return moved(policy, *queue, **setting).formed


class Ranked(NamedTuple):
    ranks: list[tuple[int, float]]  # by place
    victim_ranks: list[tuple[int, float]]
    limits: np.record


def ranked(policy: Policy, *queue: dict, **setting: Any) -> Ranked:
    """What a policy writes for a queue. Limits that it does not set are 0 here."""
    simulation = waiting_for_a_batch(policy, *queue, **setting)
    arrays, n = simulation.arrays, len(queue)
    limits = np.zeros(1, LIMITS)
    context = simulation.scheduler_context(0, float(arrays.status[0].now_s))
    policy.function(context, arrays.ranks, limits[0])
    if limits[0].listed > 0:
        leave_out_unlisted(arrays.ranks, limits[0], n)
    policy.victims(context, arrays.ranks, limits[0])
    ranks = arrays.ranks[:n]
    return Ranked(
        list(zip(ranks["tier"].tolist(), ranks["key"].tolist(), strict=True)),
        list(zip(ranks["victim_tier"].tolist(), ranks["victim_key"].tolist(), strict=True)),
        limits[0],
    )


@scheduler
def rank_by_place(context, ranks, limits):
    requests, queue, parameters = context.requests, context.queue, context.parameters
    limits.max_num_batched_tokens = int(parameters[0])
    limits.chunk_tokens = int(parameters[1])
    limits.sequence_budget = int(parameters[2])
    limits.max_num_seqs = int(parameters[3])
    limits.time_budget_s = parameters[4]
    limits.smallest_chunk_tokens = int(parameters[5])
    limits.whole_prompts = int(parameters[6])
    limits.reserve_context = int(parameters[7])
    limits.phase = int(parameters[8])
    limits.misfit = int(parameters[9])
    limits.evict_for = int(parameters[10])
    limits.untimed_decodes = int(parameters[11])
    limits.untimed_prefill_tokens = int(parameters[12])
    limits.step_tokens = int(parameters[15])
    for position in range(queue.shape[0]):
        ranks[position].tier = LEAVE_OUT if requests[queue[position]].priority < 0 else 0
        ranks[position].key = float(position)
        ranks[position].headroom_blocks = int(parameters[13]) if requests[queue[position]].priority > 0 else 0


@victims
def victims_by_priority(context, ranks, limits):
    requests, queue, parameters = context.requests, context.queue, context.parameters
    for position in range(queue.shape[0]):
        ranks[position].victim_tier = requests[queue[position]].priority
        ranks[position].victim_key = 0.0
        ranks[position].keep_tokens = int(parameters[14])


def by_place(by_priority: bool = False, **settings: float) -> Policy:
    """Requests rank by their place in the queue, those of a negative priority are left out; limits as given.

    by_priority: the largest priority gives up memory first and keeps `keep` tokens, else what ranks last, keeping none.
    headroom: blocks left free at the admission of a request of positive priority.
    """
    defaults = {"max_num_batched_tokens": MANY, "chunk_tokens": MANY, "sequence_budget": MANY, "max_num_seqs": MANY,
                "time_budget_s": np.inf, "smallest_chunk_tokens": 1, "whole_prompts": 0, "reserve_context": 1,
                "phase": 0, "misfit": 0, "evict_for": 0, "untimed_decodes": 0, "untimed_prefill_tokens": 0,
                "headroom": 0, "keep": 0, "step_tokens": 0}  # fmt: skip
    parameters = tuple(Parameter(name, value, "") for name, value in defaults.items())
    policy = Policy("by-place", "scheduler", "", "", rank_by_place, parameters=parameters)
    if by_priority:
        policy = Policy("by-place", "scheduler", "", "", rank_by_place, victims_by_priority, parameters)
    return policy.with_settings(**settings)
