"""Everything slower by one factor: a device, arrivals, SLOs and what a policy believes.

On few cores a server's own Python takes longer than some steps of a fast device. A run in which all times are
`1 / speed` as long has the same decisions, since they depend on ratios of times only, and the Python weighs `speed`
times as much.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from servegym.adapters.replay.records import Replayed
from servegym.errors import ExperimentError
from servegym.simulator.inputs.workload import Workload

TIMES = ("arrival_s", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")


def slowed(workload: Workload, speed: float) -> Workload:
    """The workload as a device of this speed is sent it: all its times are 1 / speed as long."""
    columns: dict[str, Any] = {name: workload.table[name] / speed for name in TIMES}
    return workload.replace(**columns)


def slowed_estimator(estimator: Mapping[str, Any], speed: float) -> dict[str, Any]:
    """An artifact's estimator for a device of this speed.

    Raises ExperimentError for a form that is not linear, where the speed is not 1.
    """
    if speed == 1.0:
        return dict(estimator)
    if estimator["form"] != "linear":
        raise ExperimentError(
            f"an estimator of form {estimator['form']}; only a linear one is slowed by its coefficients"
        )
    return {**estimator, "coefficients": (np.array(estimator["coefficients"]) / speed).tolist()}


def restored(replayed: Replayed, speed: float) -> Replayed:
    """What came back, in the device's own seconds."""
    records = [
        dataclasses.replace(
            record,
            due_s=record.due_s * speed,
            sent_s=record.sent_s * speed,
            token_s=[time_s * speed for time_s in record.token_s],
        )
        for record in replayed.records
    ]
    return dataclasses.replace(replayed, records=records)
