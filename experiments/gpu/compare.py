"""The served runs that a GPU brought back, each beside simulations of the same requests under the same policy."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.gpu.records import decoded
from experiments.gpu.workloads import STOCK, workload_of
from servegym.adapters.replay.measuring import Measured
from servegym.adapters.replay.records import FINISHED, INTERRUPTED, Record, Replayed
from servegym.baselines.registry import scheduler
from servegym.latency_models.profile import Profile, load_profile, parse_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

SERVED = "**served**"
COLUMNS = ("prompt_tokens", "output_tokens", "priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")


def believed_by(line: Mapping[str, Any]) -> Profile:
    """The profile that policies were given: the line has the document of a file; one that ships is known by its name.

    Raises ProfileError.
    """
    document = line.get("believed")
    return load_profile(str(line["profile"])) if document is None else parse_profile(document, str(line["run"]))


def workload_again(line: Mapping[str, Any], context_tokens: int) -> Workload | None:
    """The workload that was served, made again; None where it comes out otherwise than it did there."""
    made = workload_of(
        line["trace"], line["requests"], line["rate_per_s"], line["seed"], context_tokens, believed_by(line)
    )  # fmt: skip
    return made if made.digest == line["digest"] else None


def measured_run(line: Mapping[str, Any], known: Workload | None) -> Measured:
    """A served run, judged as a simulation is. known: its workload; None: it is taken from the line, without what the
    requests of sessions follow, and what they share."""
    arrays = decoded(line["arrays"])
    sent = np.flatnonzero(np.isfinite(arrays["arrival_s"]))
    order = sent[np.argsort(arrays["arrival_s"][sent], kind="stable")]
    if known is not None:
        order = np.arange(len(known))
    workload = known or Workload.from_columns(
        {name: arrays[name][order] for name in ("arrival_s", *COLUMNS)}, str(line["run"])
    )
    time_s = np.cumsum(arrays["token_us"]) / 1e6
    by_request = np.argsort(arrays["token_request"], kind="stable")
    bounds = np.searchsorted(arrays["token_request"][by_request], np.arange(len(arrays["arrival_s"]) + 1))
    records = []
    for place, request in enumerate(order.tolist()):
        due_s = float(arrays["arrival_s"][request])
        record = Record(due_s, due_s, time_s[by_request[bounds[request] : bounds[request + 1]]].tolist(), came_s=due_s)
        if np.isfinite(due_s):
            record.end(FINISHED if len(record.token_s) == workload.table["output_tokens"][place] else INTERRUPTED)
        records.append(record)
    return Measured(workload, Replayed(records, float(time_s[-1]) if len(time_s) else 0.0))


def again(line: Mapping[str, Any]) -> Workload | None:
    """The workload of a line that has its engine."""
    return workload_again(line, line.get("context_tokens") or line["engine"]["space"]["context_tokens"])


def deployment_of(line: Mapping[str, Any], profile: Profile, believed: Profile) -> Deployment:
    """An engine of the profile, with the limits of the one that served a line."""
    engine = line["engine"]
    space, shape = engine["space"], engine["shape"]
    caching = bool(shape["more"].get("enable_prefix_caching"))
    return dataclasses.replace(
        profile.deployment(1),
        estimator=believed.estimator,
        total_blocks=engine["kv_blocks"],
        block_tokens=engine["kv_block_tokens"],
        watermark=0.0,
        max_num_batched_tokens=space["batch_tokens"],
        max_num_seqs=space["sequences"],
        async_scheduling=bool(shape["asynchronous"]),
        prefix_caching=None if caching else False,
    )


def scheduler_of(line: Mapping[str, Any]) -> Policy:
    """The policy of a line; vLLM's own with the limits that the engine had."""
    name, space = line["policy"], line["engine"]["space"]
    if name == STOCK:
        name += f":max_num_batched_tokens={space['batch_tokens']},max_num_seqs={space['sequences']}"
    return scheduler(f"learned:{name}" if name.endswith(".json") else name)


def simulated(
    line: Mapping[str, Any], workload: Workload, profile: Profile, believed: Profile, timeline: bool = False
) -> Result:
    """A run of the same requests on a profile.

    believed: the profile whose estimator policies were given there; it is corrected by what steps took, as in vLLM.
    """
    correction = None if line["policy"] == STOCK else Correction()
    deployment = deployment_of(line, profile, believed)
    scenario = Scenario(workload, deployment, scheduler_of(line), correction=correction)
    return Simulation(scenario, record_timeline=timeline).run()


class Compared(NamedTuple):
    """A served run and its simulations. results: by what they are on, the served one first."""

    line: Mapping[str, Any]
    results: dict[str, Result | Measured]


def compared(lines: Sequence[Mapping[str, Any]], profiles: Sequence[Profile]) -> Iterator[Compared]:
    """Each served run, simulated on each profile. Two engines that share a GPU are not simulated."""
    for line in lines:
        if "arrays" not in line:
            continue
        found = measured_run(line, again(line))
        results: dict[str, Result | Measured] = {SERVED: found}
        if "router" not in line:
            believed, workload = believed_by(line), found.scenario.workload
            results |= {profile.name: simulated(line, workload, profile, believed) for profile in profiles}
        yield Compared(line, results)
