"""A workload on vLLM's engine core in this process, with the time that its thread computes as the clock.

What else the machine does is then not in the times: other processes may hold the core, but the clock stands still
meanwhile. So it is the engine itself, its scheduler and kernels, that the simulation is compared with. HTTP and the
exchange between processes are in the replay over the server, whose clock is a wall's.
"""

from __future__ import annotations

from servegym.adapters.profiling.vllm_engine import VllmMeter
from servegym.adapters.replay.records import FINISHED, Record, Replayed
from servegym.simulator.workload import Workload


def drive(meter: VllmMeter, workload: Workload) -> Replayed:
    """Each request joins the engine when the clock has come to its arrival; an engine with nothing to do skips to the
    next one. Tokens come out at the end of the step that computed them."""
    table = workload.table
    records = [Record(float(arrival_s), float(arrival_s)) for arrival_s in table["arrival_s"]]
    under_way: dict[str, int] = {}
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
        for name, tokens in step.emitted.items():
            record = records[under_way[name]]
            record.token_s.extend([now_s] * tokens)
            if len(record.token_s) == table["output_tokens"][under_way[name]]:
                record.end(FINISHED)
                del under_way[name]
    return Replayed(records, now_s)
