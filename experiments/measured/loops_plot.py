"""Closed loops: measured against simulated, with the diagonal and 10 % to both sides."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from servegym.evaluation.measured.plot import COLOURS, MARKERS, TITLES, draw_lines, save


def plot_loops(errors: pd.DataFrame, path: Path) -> Path:
    """TPOT and TTFT of closed loops, one panel each; hollow: NVIDIA's, with few settings stated. Returns `path`."""
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    panels = figure.subplots(1, 2)
    kinds = list(errors.groupby(["model", "gpu", "tp"]).groups)
    for axes, metric, title in zip(panels, ("tpot", "ttft"), ("itl", "ttft"), strict=True):
        rows = errors.assign(measured=errors[f"{metric}_s"], simulated=errors[f"simulated_{metric}_s"])
        draw_lines(axes, rows)
        for index, kind in enumerate(kinds):
            model, gpu, tp = kind
            part = rows[(rows["model"] == model) & (rows["gpu"] == gpu) & (rows["tp"] == tp)]
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
            face = "none" if (part["source"] == "NVIDIA").all() else colour
            label = f"{str(model).split('/')[-1].removesuffix('-Instruct-FP8')}, {str(gpu).upper()} x {tp}"
            axes.scatter(
                part["measured"], part["simulated"], s=26, marker=marker, edgecolors=colour, facecolors=face,
                linewidths=1.0, zorder=3, label=label,
            )  # fmt: skip
        axes.set_title(f"Time {TITLES[title]}", fontsize=11, loc="left")
    return save(figure, panels, path)
