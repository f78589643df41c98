"""A recommendation as JSON has it."""

from __future__ import annotations

import dataclasses
from typing import Any

from servegym.evaluation.recommend.matching import Match
from servegym.evaluation.recommend.recommending import OfDevice, Recommendation
from servegym.evaluation.recommend.setups import Setup


def document(found: Recommendation) -> dict[str, Any]:
    """What was asked and what was found, the recommended device first."""
    question = found.question
    return {
        "recording": question.recording,
        "requests": len(found.recording.trace),
        "notes": list(found.recording.notes),
        "slo": question.spec.demand.slo,
        "target": question.target.text,
        "served": dataclasses.asdict(question.served),
        "windows": {
            "to_choose": len(found.windows.to_choose), "to_judge": len(found.windows.to_judge),
            "requests_of_each": found.windows.requests,
        },
        "interval_over": found.windows.over,
        "match": None if found.match is None else match_document(found.match),
        "recommended": {"device": found.best.device, **setup_document(found.best.best["setup"]),
                        "engines": int(found.best.best["engines"])},
        "devices": [device_document(of) for of in found.of_devices],
    }  # fmt: skip


def match_document(match: Match) -> dict[str, Any]:
    return {
        "figures": [
            figure._asdict()
            | {"error_percent": figure.error_percent(False), "fitted_error_percent": figure.error_percent(True)}
            for figure in match.figures
        ],
        "fitted": None if match.fitted is None else dataclasses.asdict(match.fitted),
        "spread_left": dict(match.left),
        "lines": match.lines(),
    }


def setup_document(setup: Setup) -> dict[str, Any]:
    return dataclasses.asdict(setup) | {"needs_plug_in": setup.needs_plug_in}


def device_document(of: OfDevice) -> dict[str, Any]:
    rows = [row | {"setup": setup_document(row["setup"])} for row in of.table.to_dict("records")]
    return {
        "device": of.device, "price_per_hour": of.price_per_hour, "least_engines": of.least,
        "holds_target": of.chosen.best.engines is not None, "setups_tried": of.tried, "runs": of.runs,
        "setups": rows, "curve": of.curve.to_dict("records"),
    }  # fmt: skip
