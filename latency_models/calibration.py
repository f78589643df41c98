"""Makes a profile from measured batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.latency_models.documents import latency, percent
from servegym.latency_models.fitting import Fit, fit, regime, split
from servegym.latency_models.measured_batches import DURATION
from servegym.latency_models.model import as_batches
from servegym.latency_models.profile import Profile, parse_profile

if TYPE_CHECKING:
    import pandas as pd

STATEMENT = (
    "The device form is compared with measured batches that it was not fitted to, and the estimator with the device "
    "form on the same batches."
)


@dataclass(frozen=True)
class Calibration:
    """A fitted profile, with the held-out batches on which its errors are measured.

    document: the profile as JSON. device, estimator: the fits behind it. measured_s, predicted_s: float64[n], of the
    held-out batches; regimes: int64[n], which of fitting.REGIMES each is.
    """

    document: dict[str, Any]
    device: Fit
    estimator: Fit
    measured_s: np.ndarray
    predicted_s: np.ndarray
    regimes: np.ndarray

    @property
    def total_percent(self) -> float:
        """Signed error of the total time of the held-out batches, in percent."""
        return float(100.0 * (self.predicted_s.sum() / self.measured_s.sum() - 1.0))


def calibrate(
    table: pd.DataFrame, form: str, name: str, like: Profile, *, seed: int, held_out_share: float,
    total_blocks: int | None = None, source: str = "own measurements", same_total: bool = False,
) -> Calibration:  # fmt: skip
    """Fit `form` to a table of measured batches (`read_batches`) and make a profile of it.

    like: the profile that gives hardware, model and KV cache; total_blocks: replaces its number of KV blocks.
    held_out_share: share of the batches held out, drawn by `seed`, to measure errors. same_total: as in `fitting.fit`.

    Raises ProfileError for a form that is unknown or cannot be fitted to these batches, too few batches, and an invalid
    name.
    """
    device = fit(form, table, seed, held_out_share, same_total)
    batches = as_batches(table)
    believed = table.assign(**{DURATION: device.model.evaluate(batches)})
    estimator = fit("linear", believed, seed, held_out_share)
    _, held_out = split(len(table), seed, held_out_share)
    document = {
        "name": name,
        "title": f"{name}, calibrated on measured batches",
        "hardware": like.hardware,
        "model": like.model,
        "tensor_parallel": like.tensor_parallel,
        "basis": "measured batches",
        "cpu_overhead_s": 0.0,
        "cpu_overhead_source": "The measured durations hold it.",
        "device": latency(device.model),
        "estimator": latency(estimator.model),
        "kv": _kv(like, total_blocks),
        "valid": _ranges(table),
        "error": {
            "statement": STATEMENT,
            "device_vs_measured": percent(device.error),
            "estimator_vs_device": percent(estimator.error),
        },
        "provenance": {
            "method": f"Form '{form}' fitted to measured batches, non-negative least squares on relative error"
            + ", scaled to their total time" * same_total
            + ".",
            "command": f"servegym calibrate --form {form} --seed {seed} --held-out {held_out_share:g}"
            + " --same-total" * same_total,
            "seed": seed,
            "train_batches": device.train_batches,
            "held_out_batches": device.held_out_batches,
            "sources": [{"table": source, "repository": "-", "commit": "-", "licence": "-"}],
        },
    }
    parse_profile(document, f"profile '{name}'")
    return Calibration(
        document=document,
        device=device,
        estimator=estimator,
        measured_s=table[DURATION].to_numpy()[held_out],
        predicted_s=device.model.evaluate(batches[held_out]),
        regimes=regime(batches[held_out]),
    )


def _kv(like: Profile, total_blocks: int | None) -> dict[str, Any]:
    kv = asdict(like.kv) | {"arithmetic": f"As in profile {like.name}."}
    if not kv["groups"]:
        del kv["groups"]
    if total_blocks is not None:
        usable_bytes = total_blocks * like.kv.block_tokens * like.kv.bytes_per_token
        kv |= {
            "usable_bytes": usable_bytes,
            "total_blocks": total_blocks,
            "arithmetic": f"{total_blocks} blocks, as given; a block as in profile {like.name}.",
        }
    return kv


def _ranges(table: pd.DataFrame) -> dict[str, list[int]]:
    tokens = table["prefill_tokens"] + table["decode_requests"]
    sequences = table["prefill_requests"] + table["decode_requests"]
    cached = table["prefill_cached_tokens"] + table["decode_cached_tokens"]
    return {
        key: [int(column.min()), int(np.ceil(column.max()))]
        for key, column in (
            ("batch_tokens", tokens),
            ("sequences", sequences),
            ("cached_tokens", table["longest_decode_cached"]),
            ("cached_tokens_in_batch", cached),
        )
    }
