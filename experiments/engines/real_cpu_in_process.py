"""A workload on vLLM's engine core in this process, with the time that its thread computes as the clock.

What else the machine does is then not in the times: other processes may hold the core, but the clock stands still
meanwhile. So it is the engine itself, its scheduler and kernels, that the simulation is compared with. HTTP and the
exchange between processes are in the replay over the server, whose clock is a wall's.
"""

from typing import Any, NamedTuple

import numpy as np

from servegym.adapters.profiling.vllm_engine import VllmMeter
from servegym.adapters.replay.records import FINISHED, Record, Replayed
from servegym.latency_models.fitting import REGIMES, regime
from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.workload import Workload


class Driven(NamedTuple):
    """batches: BATCH[steps], what each step computed. computing_s: float64[steps], how long its thread computed."""

    replayed: Replayed
    batches: np.ndarray
    computing_s: np.ndarray


def drive(meter: VllmMeter, workload: Workload) -> Driven:
    """Each request joins the engine when the clock has come to its arrival; an engine with nothing to do skips to the
    next one. Tokens come out at the end of the step that computed them."""
    table = workload.table
    records = [Record(float(arrival_s), float(arrival_s)) for arrival_s in table["arrival_s"]]
    under_way: dict[str, int] = {}
    batches, computing_s = [], []
    now_s, arrived = 0.0, 0
    while arrived < len(table) or under_way:
        if not under_way:
            now_s = max(now_s, records[arrived].due_s)
        while arrived < len(table) and records[arrived].due_s <= now_s:
            request = table[arrived]
            under_way[meter.add(int(request["prompt_tokens"]), int(request["output_tokens"]))] = arrived
            arrived += 1
        step = meter.step()
        now_s += step.computing_s
        batches.append(step.batch.sums()[0])
        computing_s.append(step.computing_s)
        for name, tokens in step.emitted.items():
            record = records[under_way[name]]
            record.token_s.extend([now_s] * tokens)
            if len(record.token_s) == table["output_tokens"][under_way[name]]:
                record.end(FINISHED)
                del under_way[name]
    return Driven(Replayed(records, now_s), np.array(batches), np.array(computing_s))


def by_regime(device: LatencyModel, driven: Driven) -> dict[str, dict[str, Any]]:
    """What the device model says of the steps, one by one, against what they took: where a simulation goes wrong."""
    with_tokens = driven.batches["prefill_requests"] + driven.batches["decode_requests"] > 0
    batches, measured_s = driven.batches[with_tokens], driven.computing_s[with_tokens]
    modelled_s, kinds = device.evaluate(batches), regime(batches)
    found: dict[str, dict[str, Any]] = {}
    for kind, name in enumerate(REGIMES):
        its = kinds == kind
        if its.any():
            error = np.abs(modelled_s[its] / measured_s[its] - 1.0).mean()
            found[name] = {
                "steps": int(its.sum()),
                "measured_s": float(measured_s[its].sum()),
                "modelled_s": float(modelled_s[its].sum()),
                "mape_percent": float(100.0 * error),
            }
    return found
