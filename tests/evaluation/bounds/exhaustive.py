"""The best gain of all schedules of a few requests on one linear device, found by trying them all.

Every sequence of batches that the rules of docs/simulation.md allow without memory limits: any chunks of any of the
requests that are there, waiting for the next arrival instead, and before each batch the eviction of any request.
"""

import functools
import itertools

import numpy as np

from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain


def best_gain(workload: Workload, device: LatencyModel, gain: Gain, evictions: bool = False) -> float:
    rows = workload.table
    a_p, b_p, c_p, a_d, b_d, t_c = device.coefficients.tolist()
    first, later = gain.token_gains(rows)
    n = len(rows)
    first_s = rows["arrival_s"] + rows["ttft_slo_s"]
    interval_s = rows["tpot_slo_s"].copy()
    of_ttlt = np.isfinite(rows["ttlt_slo_s"])
    first_s[of_ttlt], interval_s[of_ttlt] = (rows["arrival_s"] + rows["ttlt_slo_s"])[of_ttlt], 0.0
    deadlines = [(first_s[r] + np.arange(rows["output_tokens"][r]) * interval_s[r]).tolist() for r in range(n)]

    def duration_s(batch: list[tuple[int, int, bool]]) -> float:
        total_s = t_c
        for tokens, cached, decoding in batch:
            if decoding:
                total_s += a_d * cached + b_d
            else:
                total_s += a_p * tokens**2 + b_p * tokens * cached + c_p * tokens
        return total_s

    @functools.cache
    def best(now_s: float, state: tuple[tuple[int, int], ...]) -> float:
        """From here on; state: (computed, emitted) of each request."""
        open_requests = [
            r for r in range(n)
            if state[r][1] < rows["output_tokens"][r] and deadlines[r][-1] > now_s
        ]  # fmt: skip
        if not open_requests:
            return 0.0
        here = [r for r in open_requests if rows["arrival_s"][r] <= now_s]
        found = 0.0
        coming = [float(rows["arrival_s"][r]) for r in range(n) if rows["arrival_s"][r] > now_s]
        if coming:
            found = best(min(coming), state)
        kept_or_not = itertools.product(*[(False, True) if evictions and state[r][0] else (False,) for r in here])
        for evicted in kept_or_not:
            held = list(state)
            for r, gone in zip(here, evicted, strict=True):
                if gone:
                    held[r] = (0, state[r][1])
            left = [int(rows["prompt_tokens"][r]) + held[r][1] - held[r][0] for r in here]
            for chunks in itertools.product(*[range(tokens + 1) for tokens in left]):
                if not any(chunks):
                    continue
                batch = [
                    (chunk, held[r][0], held[r][1] > 0 and tokens == 1)
                    for r, chunk, tokens in zip(here, chunks, left, strict=True)
                    if chunk
                ]
                end_s = now_s + duration_s(batch)
                after, earned = list(held), 0.0
                for r, chunk, tokens in zip(here, chunks, left, strict=True):
                    computed, emitted = held[r][0] + chunk, held[r][1]
                    if chunk and chunk == tokens:
                        if end_s < deadlines[r][emitted]:
                            earned += float(later[r] if emitted else first[r])
                        emitted += 1
                    after[r] = (computed, emitted)
                found = max(found, earned + best(end_s, tuple(after)))
        return found

    start = tuple((0, 0) for _ in range(n))
    return best(float(rows["arrival_s"][0]), start)
