"""The tables of docs/results/vllm-emulated.md, in Markdown, from what `emulated_vllm` measured.

python -m experiments.engines.emulated_tables OUT/figures.csv [OUT/figures.csv ...]
"""

import sys

import pandas as pd

from servegym.evaluation.markdown import table

SIMULATED, VIRTUAL, SERVED = "simulated", "virtual", "served"
OVERHEAD = {
    "steps": ("steps", "{:.0f}"),
    "mean duration of a step": ("step_mean_ms", "{:.1f}"),
    "mean overhead": ("overhead_mean_ms", "{:.2f}"),
    "its end noticed late, p99": ("late_p99_ms", "{:.2f}"),
    "the next one not ready, p50": ("between_p50_ms", "{:.2f}"),
    "the next one not ready, p99": ("between_p99_ms", "{:.2f}"),
}


def virtual_table(lines: pd.DataFrame) -> str:
    """TDG of each workload, simulated and in virtual time; where any figure differs, the cell says so."""
    lines = lines.loc[lines["way"].isin((SIMULATED, VIRTUAL))]
    lines = lines.loc[lines.groupby(["seed", "scheduler"])["way"].transform("nunique") == 2]
    rows: dict[int, list[str]] = {}
    for (seed, _), pair in lines.groupby(["seed", "scheduler"], sort=False):
        both = pair.drop_duplicates("way").set_index("way").dropna(axis="columns", how="all").drop(columns="scheduler")
        differing = [name for name in both if both[name][SIMULATED] != both[name][VIRTUAL]]
        cell = f"{both['tdg'][SIMULATED]:.4f} = {both['tdg'][VIRTUAL]:.4f}"
        rows.setdefault(seed, []).append(cell + (f" (not: {', '.join(differing)})" if differing else ""))
    heads = ["seed", *lines["scheduler"].unique()]
    return table(heads, ([str(seed), *cells] for seed, cells in rows.items()), words=len(heads))


def served_table(lines: pd.DataFrame) -> str:
    rows = []
    for (seed, scheduler), runs in _served(lines).groupby(["seed", "scheduler"], sort=False):
        for run in runs.itertuples():
            times = (f"{run.ttft_p50_s:.3f} / {run.ttft_p90_s:.3f}", f"{run.tpot_p50_ms:.1f} / {run.tpot_p90_ms:.1f}")
            first = run.way == SIMULATED
            bold = "**" if run.way == SERVED else ""
            rows.append([
                f"{seed}" if first else "", scheduler if first else "", f"{bold}{run.way}{bold}",
                f"{bold}{run.tdg:.3f}{bold}", f"{run.slo_attainment:.3f}", *times,
            ])  # fmt: skip
    heads = ["seed", "scheduler", "", "TDG", "SLO attainment", "TTFT p50 / p90, s", "TPOT p50 / p90, ms"]
    return table(heads, rows, words=len(heads))


def overhead_table(lines: pd.DataFrame) -> str:
    runs = [run for _, run in lines.loc[lines["way"] == SERVED].iterrows()]
    heads = ["overhead of a step, ms of the device", *(f"{run['scheduler']}, seed {run['seed']}" for run in runs)]
    rows = ([name, *(form.format(run[key]) for run in runs)] for name, (key, form) in OVERHEAD.items())
    return table(heads, rows, words=len(heads))


def _served(lines: pd.DataFrame) -> pd.DataFrame:
    """Runs of those workloads and schedulers that were served."""
    return lines.loc[lines.groupby(["seed", "scheduler"])["way"].transform(lambda ways: SERVED in set(ways))]


def main(paths: list[str]) -> int:
    lines = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
    for write, way in ((virtual_table, VIRTUAL), (served_table, SERVED), (overhead_table, SERVED)):
        if (lines["way"] == way).any():
            print(write(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
