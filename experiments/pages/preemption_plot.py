"""A prefill that is suspended at the end of an operator, drawn from a run: FlowPrefill's Figure 8.

python -m experiments.pages.preemption_plot docs/images
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from servegym.baselines.registry import scheduler
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.operators import Operators
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records import types as layout
from servegym.simulator.records.types import TIMELINE_KINDS
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

FILE = "flowprefill-preemption.png"
DEVICE = "a100-llama3-8b"
PROMPTS = (12000, 400)  # tokens of A, a file to be summarised, and of B, a text
TTFT_SLO_S = (6.0, 0.25)
ARRIVAL_S = (0.0, 0.4)
NAMES = ("A", "B")
GREYS = ("0.25", "0.85", "0.5", "0.95", "0.7")  # of the operators, in turn
COMMANDS = {"batch_start": "submit", "suspended": "preempted", "resumed": "resume", "batch_end": "done"}


@dataclasses.dataclass(frozen=True)
class Piece:
    """A time in which a request's prefill runs, and what began and ended it."""

    request: int
    start_s: float
    end_s: float
    began: str
    ended: str


def two_requests() -> Result:
    """A long prompt with a loose SLO, and a short one with a tight SLO that comes while the first is computed."""
    workload = Workload.from_columns(
        {"arrival_s": ARRIVAL_S, "prompt_tokens": PROMPTS, "output_tokens": 1, "ttft_slo_s": TTFT_SLO_S,
         "tpot_slo_s": 0.1}
    )  # fmt: skip
    scenario = Scenario(workload, load_profile(DEVICE).deployment(), scheduler("flow-prefill"))
    return Simulation(scenario, record_timeline=True).run()


def pieces(result: Result) -> list[Piece]:
    """When each prefill ran, in order. Of batches of one request each."""
    found: list[Piece] = []
    began, start_s, request = "", 0.0, 0
    arrays = result.arrays
    for line in arrays.timeline[: arrays.status[0].timeline_used]:
        kind = TIMELINE_KINDS[line.kind]
        if kind in ("batch_start", "resumed"):
            began, start_s = kind, float(line.time_s)
        if kind in ("scheduled", "resumed"):
            request = int(line.request)
        if kind in ("suspended", "batch_end"):
            found.append(Piece(request, start_s, float(line.time_s), began, kind))
    return found


def operators_of_layer() -> Operators:
    operators = load_profile(DEVICE).deployment().operators
    assert operators is not None
    return operators


def operator_ends(start_s: float) -> np.ndarray:
    """float64[layers, operators]: when each operator of A would end if nothing suspended it."""
    operators = operators_of_layer()
    tokens = float(PROMPTS[0])
    batch = np.zeros(1, layout.BATCH)
    batch["prefill_requests"], batch["longest_prefill_tokens"], batch["prefill_tokens"] = 1, tokens, tokens
    batch["prefill_tokens_squared"] = tokens**2
    layer_s = float(load_profile(DEVICE).device.evaluate(batch)[0]) / operators.layers
    shares = np.cumsum(operators.coefficients @ [tokens, tokens**2, 0.0, 1.0])
    return start_s + (np.arange(operators.layers)[:, None] + shares / shares[-1]) * layer_s


def plot(result: Result) -> Figure:
    """Above: both prefills and the scheduler's decisions. Below: the operators around the preemption."""
    ran = pieces(result)
    figure = Figure(figsize=(8.2, 4.3), layout="constrained")
    whole, close = figure.subplots(2, 1)
    _both(whole, ran)
    _operators(close, ran[0])
    for axes in (whole, close):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def _both(axes: Axes, ran: list[Piece]) -> None:
    for piece in ran:
        height, grey = 1 - piece.request, ("0.75", "0.3")[piece.request]
        axes.barh(height, piece.end_s - piece.start_s, left=piece.start_s, height=0.42, color=grey)
        axes.text(piece.start_s, height + 0.26, COMMANDS[piece.began], fontsize=8, ha="left")
        side = "right" if piece.request == 0 else "left"
        axes.text(piece.end_s, height - 0.4, COMMANDS[piece.ended], fontsize=8, ha=side)
    for request, arrival_s in enumerate(ARRIVAL_S):
        axes.plot([arrival_s], [0.7 - request], marker="^", color="black", markersize=6, clip_on=False)
    axes.set_yticks([1, 0], [f"{name}: {tokens:,} tokens" for name, tokens in zip(NAMES, PROMPTS, strict=True)])
    axes.set_ylim(-0.6, 1.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("time, s  (triangles: arrivals)", fontsize=9)


def _operators(axes: Axes, stopped: Piece) -> None:
    ends = operator_ends(stopped.start_s)
    layer = int(np.searchsorted(ends[:, -1], ARRIVAL_S[1]))
    starts = np.r_[ends[layer - 1, -1], ends[layer, :-1]]
    for name, grey, start_s, end_s in zip(operators_of_layer().names, GREYS, starts, ends[layer], strict=True):
        ran = end_s <= stopped.end_s + 1e-9
        axes.barh(0, 1e3 * (end_s - start_s), left=1e3 * start_s, height=0.6, color=grey if ran else "white",
                  edgecolor="black", linewidth=0.8, linestyle="-" if ran else ":")  # fmt: skip
        dark = ran and float(grey) < 0.5
        axes.text(500 * (start_s + end_s), 0, name.replace("_", "\n"), fontsize=7, ha="center", va="center",
                  color="white" if dark else "black")  # fmt: skip
    lines = {"B comes": ARRIVAL_S[1], "A stops": stopped.end_s, "end of the layer": ends[layer, -1]}
    for k, (what, time_s) in enumerate(lines.items()):
        axes.axvline(1e3 * time_s, ymin=0.1, ymax=0.86, color="black", linewidth=1.6 if k < 2 else 1.0,
                     linestyle=("-", "-", "--")[k])  # fmt: skip
        axes.text(1e3 * time_s, 0.62, what, fontsize=8, ha=("right", "left", "center")[k])
    blocking_ms = 1e3 * (stopped.end_s - ARRIVAL_S[1])
    axes.annotate("", (1e3 * ARRIVAL_S[1], -0.5), (1e3 * stopped.end_s, -0.5), arrowprops={"arrowstyle": "<->"})
    axes.text(1e3 * stopped.end_s + 0.3, -0.5, f"blocking time {blocking_ms:.1f} ms", fontsize=8, va="center")
    axes.set_yticks([0], [f"A: layer {layer + 1}"])
    axes.set_xlim(1e3 * starts[0], 1e3 * (2 * ends[layer, -1] - ends[layer, -2]))
    axes.set_ylim(-0.75, 0.85)
    axes.set_xlabel("time, ms  (dotted: operators that run when A is resumed)", fontsize=9)


def main(folder: Path) -> None:
    plot(two_requests()).savefig(folder / FILE, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
