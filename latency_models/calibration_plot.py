"""The picture of a calibration: predicted against measured times of held-out batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from servegym.latency_models.fitting import REGIMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from servegym.latency_models.calibration import Calibration

DOTS_PER_INCH = 150
# Marker, colour and fill of each regime, distinct without colour too.
STYLES = (("o", "#0072B2", "none"), ("s", "#D55E00", "#D55E00"), ("^", "#000000", "none"))
MARGIN = 1.15  # beyond the shortest and longest batch, as a ratio


def plot_calibration(calibration: Calibration, path: str | Path) -> Path:
    """Plot predicted against measured times as a PNG; returns `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    axes = figure.subplots()
    measured_ms, predicted_ms = calibration.measured_s * 1e3, calibration.predicted_s * 1e3
    both = np.concatenate([measured_ms, predicted_ms])
    ends = [both.min() / MARGIN, both.max() * MARGIN]
    axes.plot(ends, ends, color="0.4", linewidth=1, label="predicted = measured", zorder=1)
    for kind, (regime, (marker, edge, fill)) in enumerate(zip(REGIMES, STYLES, strict=True)):
        rows = calibration.regimes == kind
        if rows.any():
            axes.scatter(
                measured_ms[rows], predicted_ms[rows], s=16, marker=marker, facecolors=fill, edgecolors=edge,
                linewidths=0.8, label=f"{regime}, {rows.sum()} batches", zorder=2,
            )  # fmt: skip
    _scales(axes, ends)
    error = calibration.device.error
    axes.set_title(
        f"{calibration.document['name']}, form {calibration.document['device']['form']}\n"
        f"MAPE {error.mape_percent:.2f} %, largest error {error.max_percent:.1f} %, "
        f"{calibration.device.held_out_batches} held-out batches",
        fontsize=11, loc="left",
    )  # fmt: skip
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Path(path)


def _scales(axes: Axes, ends: list[float]) -> None:
    """Both axes alike, logarithmic, labelled in plain milliseconds."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="0.9", linewidth=0.6, zorder=0)
    axes.set_xlabel("measured time of the batch, ms")
    axes.set_ylabel("predicted time of the batch, ms")
