"""Fits a form to a table of batches, and measures its errors on held-out batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.forms import forms, get_form
from servegym.latency_models.model import LatencyModel, as_batches

if TYPE_CHECKING:
    import pandas as pd

HELD_OUT_SHARE = 0.3
REGIMES = ("decode", "prefill", "mixed")
LATE = 1.5
TERMS = ("prefill_tokens", "decode_requests", "decode_cached_tokens")  # of a robust fit, beside a constant


@dataclass(frozen=True)
class FitError:
    """Absolute relative errors in percent: mean, also by regime (nan: no such batch), p95 and largest."""

    mape_percent: float
    decode_mape_percent: float
    prefill_mape_percent: float
    mixed_mape_percent: float
    p95_percent: float
    max_percent: float


@dataclass(frozen=True)
class Fit:
    """A fitted model with its errors on the batches held out of the fit."""

    model: LatencyModel
    error: FitError
    train_batches: int
    held_out_batches: int


def split(count: int, seed: int, held_out_share: float = HELD_OUT_SHARE) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (int64) to train on and to hold out, drawn by `seed`, each in rising order."""
    order = np.random.default_rng(seed).permutation(count)
    held_out = round(count * held_out_share)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def in_time(table: pd.DataFrame) -> np.ndarray:
    """bool[n]: whether each batch is within a factor of LATE of a robust linear fit.

    In a run, a step whose end is noticed late appears long, and the next one short; both are left out.
    """
    from scipy.optimize import least_squares

    terms = np.column_stack([np.ones(len(table)), *(table[name] for name in TERMS)])
    scale = np.maximum(terms.max(axis=0), 1.0)
    seconds = table["duration_s"].to_numpy()

    def off(weights: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(terms / scale @ np.exp(weights), 1e-9) / seconds)

    fitted = least_squares(off, np.log(np.full(len(scale), seconds.max() / 4)), loss="soft_l1", f_scale=0.1)
    found: np.ndarray = np.abs(off(fitted.x)) < np.log(LATE)
    return found


def regime(batches: np.ndarray) -> np.ndarray:
    """Index into REGIMES, int64[n]: decodes only, prefills only, or both."""
    decodes, prefills = batches["decode_requests"] > 0, batches["prefill_requests"] > 0
    return np.where(prefills, np.where(decodes, 2, 1), 0)


def measure(model: LatencyModel, batches: np.ndarray | pd.DataFrame, duration_s: np.ndarray) -> FitError:
    """Errors of the model against duration_s, float64[n]."""
    batches = as_batches(batches)
    percent = 100.0 * np.abs(model.evaluate(batches) / duration_s - 1.0)
    kinds = regime(batches)
    decode, prefill, mixed = (percent[kinds == kind] for kind in range(len(REGIMES)))
    return FitError(
        mape_percent=float(percent.mean()),
        decode_mape_percent=_mean(decode),
        prefill_mape_percent=_mean(prefill),
        mixed_mape_percent=_mean(mixed),
        p95_percent=float(np.percentile(percent, 95)),
        max_percent=float(percent.max()),
    )


def _mean(percent: np.ndarray) -> float:
    return float(percent.mean()) if len(percent) else float("nan")


def fit(
    form: str, table: pd.DataFrame, seed: int = 0, held_out_share: float = HELD_OUT_SHARE, same_total: bool = False
) -> Fit:
    """Fit a form to a table with the columns of BATCH and duration_s; errors are those of the held-out rows.

    same_total: leave late batches out (`in_time`), then scale the fit so that the total time of all batches, late ones
    included, is the measured one.

    Raises ProfileError for an unknown form, one that cannot be fitted (at all, or to such batches), a missing or
    malformed column, a duration that is not positive, and too few batches for two rows in each part of the split.
    """
    fit_form = get_form(form).fit
    if fit_form is None:
        fitted = ", ".join(name for name, known in forms().items() if known.fit is not None)
        raise ProfileError(f"form '{form}' is made from specifications, not fitted to batches; fitted: {fitted}")
    batches = as_batches(table)
    if "duration_s" not in table:
        raise ProfileError("table of batches: column 'duration_s' is missing; a form is fitted to it")
    duration_s = np.asarray(table["duration_s"], dtype=np.float64)
    bad = np.flatnonzero(~(np.isfinite(duration_s) & (duration_s > 0)))
    if len(bad):
        raise ProfileError(
            f"table of batches: duration_s is {duration_s[bad[0]]} in row {bad[0]}; it must be finite and above 0"
        )
    train, held_out = split(len(batches), seed, held_out_share)
    if min(len(train), len(held_out)) < 2:
        raise ProfileError(
            f"table of batches: {len(batches)} rows leave {len(train)} to train on and {len(held_out)} "
            "held out; each needs 2 or more"
        )
    kept = train[in_time(table.iloc[train])] if same_total else train
    model = LatencyModel.from_values(form, fit_form(batches[kept], duration_s[kept]))
    if same_total:
        model = model.times(duration_s[train].sum() / model.evaluate(batches[train]).sum())
    return Fit(model, measure(model, batches[held_out], duration_s[held_out]), len(train), len(held_out))
