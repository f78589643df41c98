"""What is measured of a run, beside the figures every comparison has."""

from typing import Any

import numpy as np

from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.settings import idle_prefill_s
from servegym.evaluation.figures import figures
from servegym.simulator.runs.results import Result

PRIORITIES = {"high": 0, "low": 1}
LONG_SHARE = 0.1  # of the requests, by prompt, are long


def serve(cell: Cell) -> dict[str, Any]:
    """The figures of a run, and by priority its TDG ratio and two kinds of SLO attainment.

    slo_attainment: TTFT and mean TPOT both met, the mean taken from the actual first token (as the papers print).
    deadline_attainment: the first and the last token before their deadlines. It is what mean TPOT becomes where
    tokens are buffered and shown at their deadlines: shown first at the TTFT SLO, all later ones TPOT SLO apart.
    """
    result = simulation(cell).run()
    return {**figures(result), **by_priority(result)}


def by_priority(result: Result) -> dict[str, float | None]:
    """TDG ratio and deadline attainment: of all, of high and of low priority (None where there is none)."""
    requests = result.requests
    finished_by_s = requests["ttft_slo_s"] + (requests["output_tokens"] - 1) * requests["tpot_slo_s"]
    in_time = (requests["ttft_s"] < requests["ttft_slo_s"]) & (requests["ttlt_s"] < finished_by_s)
    measured: dict[str, float | None] = {"deadline_attainment": float(in_time.mean())}
    for name, priority in PRIORITIES.items():
        of_priority = requests["priority"] == priority
        gain, ideal = requests["gain"][of_priority].sum(), requests["ideal_gain"][of_priority].sum()
        measured[f"tdg_ratio_{name}_priority"] = float(gain / ideal) if ideal else None
        measured[f"deadline_attainment_{name}_priority"] = (
            float(in_time[of_priority].mean()) if of_priority.any() else None
        )
    return measured


def serve_by_first_token(cell: Cell) -> dict[str, Any]:
    """As `serve`, with the share of decode tokens in time of the requests whose first token was in time, and of those
    whose first token was late (None where there are none): the latter have to catch up. Requests with a TTLT, whose
    tokens all have one deadline, are left out of that."""
    result = simulation(cell).run()
    requests = result.requests[np.isinf(result.requests["ttlt_slo_s"])]
    first = requests["ttft_s"] < requests["ttft_slo_s"]
    decodes, in_time = requests["output_tokens"] - 1, requests["on_time_tokens"] - first
    shares = {
        f"decodes_in_time_after_{name}_first": float(in_time[which].sum() / decodes[which].sum())
        if decodes[which].sum()
        else None
        for name, which in {"early": first, "late": ~first}.items()
    }
    return {**figures(result), **by_priority(result), **shares}


def serve_long_prompts(cell: Cell, chunk_tokens: int) -> dict[str, Any]:
    """As `serve`, with the share of long prompts whose first token is late although an idle engine would be in time.

    Long are the longest `LONG_SHARE` of the prompts that an idle engine prefills within the TTFT SLO in chunks of
    `chunk_tokens`: what no order could have saved is left out.
    """
    result = simulation(cell).run()
    requests = result.requests
    in_reach = idle_prefill_s(cell.device, result.scenario.workload.table, chunk_tokens) < requests["ttft_slo_s"]
    reachable = requests[in_reach]
    long = reachable[reachable["prompt_tokens"] >= reachable["prompt_tokens"].quantile(1 - LONG_SHARE)]
    late = ~(long["ttft_s"] < long["ttft_slo_s"])
    return {
        **figures(result),
        **by_priority(result),
        "long_late_share": float(late.mean()) if len(long) else None,
        "ttft_long_p50_s": float(np.median(long["ttft_s"])) if len(long) else None,
    }
