"""Reads operator tables under $SERVEGYM_DATA/profiles and /measured/profiles, and interpolates in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from servegym.errors import ProfileError

if TYPE_CHECKING:
    import pandas as pd


def read_table(name: str, suffix: str = ".parquet") -> pd.DataFrame:
    """Read the table of this name, a Parquet or CSV file. Raises ProfileError if SERVEGYM_DATA is not set, or has no
    such table."""
    import pandas as pd

    root = os.environ.get("SERVEGYM_DATA")
    if not root:
        raise ProfileError("SERVEGYM_DATA is not set; it must name the folder that holds profiles/")
    path = Path(root) / "profiles" / f"{name}{suffix}"
    other = Path(root) / "measured" / "profiles" / path.name
    path = other if other.exists() and not path.exists() else path
    if not path.exists():
        raise ProfileError(f"{path} does not exist; composing batch times needs this table")
    return pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)


@dataclass(frozen=True)
class Curve:
    """Values y over x: linear between points, constant before the first, past the last with the last slope."""

    x: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, points: pd.Series) -> Curve:
        """Make it from a series of y indexed by x; points of equal x are averaged."""
        points = points.groupby(level=0).mean().sort_index()
        return cls(points.index.to_numpy(dtype=float), points.to_numpy(dtype=float))

    def at(self, x: np.ndarray) -> np.ndarray:
        beyond = np.maximum(x - self.x[-1], 0.0)
        slope = (self.y[-1] - self.y[-2]) / (self.x[-1] - self.x[-2])
        return np.interp(x, self.x, self.y) + beyond * slope


@dataclass(frozen=True)
class Surface:
    """Curves over x for increasing values of a parameter, linear between two of them and past the last."""

    parameters: np.ndarray
    curves: tuple[Curve, ...]

    @classmethod
    def of(cls, curves: Mapping[float, Curve]) -> Surface:
        parameters = sorted(curves)
        return cls(np.array(parameters, dtype=float), tuple(curves[value] for value in parameters))

    def at(self, parameter: np.ndarray, x: np.ndarray) -> np.ndarray:
        rows = np.stack([curve.at(x) for curve in self.curves])
        left = np.searchsorted(self.parameters, parameter, side="right") - 1
        left = left.clip(0, len(self.curves) - 2)
        low, high = self.parameters[left], self.parameters[left + 1]
        share = np.maximum((parameter - low) / (high - low), 0.0)
        each = np.arange(len(x))
        return rows[left, each] * (1.0 - share) + rows[left + 1, each] * share
