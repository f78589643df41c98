"""What a GPU brought back beside simulations of the same, as a page's tables and a picture.

    python -m experiments.gpu.page FOLDER --profile h100-llama3-8b --profile measured.json [--page PAGE]

FOLDER has what the scripts leave: runs.jsonl, and batches.csv with profile.json. Each profile is judged by the batches,
by the steps of the runs at saturation, and by simulating each served run. The requests of each run go to
FOLDER/requests as Parquet. A rehearsal on a CPU is no measurement: its tables say so. The runs of `shapes` are of other
models, and of profiles of their own: `--shape experts` is a page of these.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.gpu import hypotheses
from experiments.gpu.compare import SERVED, Compared, compared
from experiments.gpu.driving import QUANTILES, summary_of
from experiments.gpu.records import runs_of
from experiments.gpu.steps import steps
from experiments.gpu.workloads import STOCK
from servegym.evaluation.markdown import narrow_header, row
from servegym.latency_models.fitting import REGIMES, fit, regime
from servegym.latency_models.measured_batches import DURATION, read_batches
from servegym.latency_models.model import as_batches
from servegym.latency_models.profile import Profile, load_profile

REHEARSED = "**Rehearsed on a CPU with a tiny model: no measurement.**\n\n"
CAPTURED = 512  # tokens of the largest batch that vLLM captures CUDA graphs of, with 256 sequences
BEGIN, END = "<!-- tables -->", "<!-- /tables -->"
TERMS = {
    "constant, ms": ("t_c", 1e3), "a prefill token, us": ("c_p", 1e6), "a decode, us": ("b_d", 1e6),
    "a cached token of a decode, ns": ("a_d", 1e9),
}  # fmt: skip
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "black", "linewidth": 1.8}, {"color": "tab:blue", "linewidth": 1.2, "linestyle": "--"},
    {"color": "tab:green", "linewidth": 1.2, "linestyle": ":"}, {"color": "tab:red", "linewidth": 1.2},
)  # fmt: skip


def served_rows(runs: Sequence[Compared], folder: Path) -> Iterator[str]:
    """Of each run a row as it was served, and one for each profile; its requests go to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        name = "".join(c if c.isalnum() or c in ".-" else "_" for c in str(run.line["run"]))
        run.results[SERVED].requests.to_parquet(folder / f"{name}.parquet", compression="zstd")
        for label, result in run.results.items():
            summary, title = result.summary, run.line["run"] if label == SERVED else ""
            cells = [title, label, text_of(summary["tdg_ratio"]), text_of(summary["slo_attainment"])]
            for column in ("ttft_s", "tpot_s", "ttlt_s"):
                figures = summary_of(result.requests[column].dropna())
                cells.append(" / ".join(text_of(figures.get(q)) for q in ("mean", *QUANTILES)))
            yield row(*cells)


def text_of(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.3g}"


def batch_rows(rows: pd.DataFrame, profiles: Sequence[Profile]) -> Iterator[str]:
    """For each profile and kind of batch: how many, the mean error of a batch, and of all their time together."""
    batches, measured_s = as_batches(rows), rows[DURATION].to_numpy()
    kinds, tokens = regime(batches), batches["prefill_tokens"] + batches["decode_requests"]
    groups = {"all": tokens > 0} | {name: kinds == kind for kind, name in enumerate(REGIMES)}
    groups[f"up to {CAPTURED} tokens"] = tokens <= CAPTURED
    groups[f"more than {CAPTURED} tokens"] = tokens > CAPTURED
    for profile in profiles:
        said_s = profile.device.evaluate(batches)
        for name, its in groups.items():
            if its.any():
                each = 100.0 * np.abs(said_s[its] / measured_s[its] - 1.0).mean()
                bias = 100.0 * (said_s[its].sum() / measured_s[its].sum() - 1.0)
                yield row(profile.name, name, its.sum(), f"{each:.1f} %", f"{bias:+.1f} %")


def batch_table(rows: pd.DataFrame, profiles: Sequence[Profile]) -> str:
    heads = narrow_header("profile", "batches", "number", "error of a batch, mean", "of their time together")
    return "\n".join([*heads, *batch_rows(rows, profiles)]) + "\n\n"


def term_table(rows: pd.DataFrame, profiles: Sequence[Profile]) -> str:
    """The linear form (ProServe, Eq. 4 to 7) fitted to what the rows took, and to what each profile says of them."""
    batches = as_batches(rows)
    said = {"measured": rows[DURATION].to_numpy()} | {p.name: p.device.evaluate(batches) for p in profiles}
    lines = narrow_header("", *TERMS)
    for name, seconds in said.items():
        numbers: dict[str, Any] = fit("linear", rows.assign(**{DURATION: seconds})).model.coefficients_by_name
        cells = (f"{numbers[term] * scale:.2f}" for term, scale in TERMS.values())
        lines.append(row(name, *cells))
    return "\n".join(lines) + "\n\n"


def tables(folder: Path, profiles: Sequence[Profile], shape: str | None = None) -> tuple[str, list[Compared]]:
    """All tables, with a warning where this was a rehearsal; and the runs. shape: as of `runs_of`."""
    lines = list(runs_of(folder, shape))
    parts = [REHEARSED] if any(line["rehearsal"] for line in lines) else []
    machines = sorted({str(line["machine"]["gpu"]) for line in lines})
    parts.append(f"On: {'; '.join(machines) or 'nothing yet'}.\n\n")
    if shape is None and (folder / "batches.csv").exists():
        parts += [
            "Designed batches, one at a time:\n\n", batch_table(read_batches(folder / "batches.csv"), profiles)
        ]  # fmt: skip
    table = steps(folder, shape=shape)
    if len(table):
        parts += ["Steps of the runs at saturation:\n\n", batch_table(table, profiles)]
        parts += ["The same steps, term by term:\n\n", term_table(table, profiles)]
    for load in sorted({line["load"] for line in lines if line.get("load")}, reverse=True):
        table = steps(folder, load, late=True, shape=shape)
        if len(table):
            title = f"All logged steps of the runs at load {load:g}, of which no profile has anything:\n\n"
            parts += [title, batch_table(table, profiles)]
    runs = list(compared(lines, profiles))
    parts.append(hypotheses.tables(runs))
    latencies = (f"{name}, s: mean / {' / '.join(QUANTILES)}" for name in ("TTFT", "TPOT", "E2E"))
    heads = narrow_header("run", "", "TDG", "attainment", *latencies)
    parts.append("\n".join(["Served, and simulated:\n", *heads, *served_rows(runs, folder / "requests")]) + "\n")
    return "".join(parts), runs


def picture(runs: Sequence[Compared], path: Path) -> None:
    """How TTFT and TPOT are spread over the requests of each run under vLLM's own order at a load above 1."""
    import matplotlib

    matplotlib.use("agg")
    shown = [run for run in runs if (run.line.get("load") or 0.0) > 1.0 and run.line.get("policy") == STOCK]
    figure, axes = plt.subplots(2, len(shown), figsize=(3.6 * len(shown), 5.4), squeeze=False, layout="constrained")
    for place, run in enumerate(shown):
        for axis, (column, label) in zip(axes[:, place], (("ttft_s", "TTFT, s"), ("tpot_s", "TPOT, s")), strict=True):
            for style, (name, result) in zip(STYLES, run.results.items(), strict=False):
                values = np.sort(result.requests[column].dropna())
                share = np.arange(1, len(values) + 1) / len(values)
                axis.step(values, share, where="post", label=name.strip("*"), **style)
            axis.set(xlabel=label, ylim=(0, 1), xlim=(0, None))
            if column == "ttft_s":
                axis.set(xscale="log", xlim=(0.02, 8))
        axes[0, place].set_title(f"{run.line['trace']}, load {run.line['load']:g}\n{run.line['policy']}", fontsize=10)
    axes[0, 0].set_ylabel("share of requests")
    axes[1, 0].set_ylabel("share of requests")
    axes[0, 0].legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def put(text: str, page: Path | None, parser: argparse.ArgumentParser) -> None:
    """Write tables between the markers of a page, or print them where there is no page. Ends the command, status 2,
    for a page without markers."""
    if page is None:
        print(text)
        return
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    if not tail:
        parser.error(f"{page} has no {BEGIN} ... {END}")
    page.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{tail}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", action="append", required=True, help="a name or a file; repeatable")
    parser.add_argument("--shape", help="of `shapes`; default: runs of the other scripts")
    parser.add_argument("--page", type=Path, help="put the tables between its markers")
    parser.add_argument("--picture", type=Path, help="a PNG file of the runs at a load above 1")
    given = parser.parse_args(arguments)
    text, runs = tables(given.folder, [load_profile(name) for name in given.profile], given.shape)
    put(text, given.page, parser)
    if given.picture is not None:
        picture(runs, given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
