"""Waiting time by urgency level against a predictor's error, a panel a device: Figure 2 of semantic scheduling."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.claims.harness import drawing
from experiments.claims.harness.waiting import LEVELS, waited


def picture_of_errors(
    about: str, errors: Sequence[float], predictor: Callable[[float], str], **where: Any
) -> Callable[[pd.DataFrame, Path], None]:
    """What draws the rows of the runs `where` holds, with the predictor of each error."""

    def picture(rows: pd.DataFrame, path: Path) -> None:
        devices = list(rows["device"].unique())
        figure, row = drawing.panels(devices, f"error about {about}", "waiting time, s per output token", share_y=False)
        for axes, device in zip(row, devices, strict=True):
            here = rows[rows["device"] == device]
            for style, level in enumerate((*LEVELS, None)):
                curve = [waited(here, level, predictor=predictor(error), **where) for error in errors]
                drawing.curve(axes, errors, curve, "overall" if level is None else f"level {level}", style)
            axes.set_ylim(0)
        drawing.save(figure, row, path)

    return picture
