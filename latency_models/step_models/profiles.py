"""Makes profiles by step models, once for each version of the library and of the form, and keeps them in the cache."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from servegym.latency_models.building.document import document_of
from servegym.latency_models.building.from_config import MOST_CACHED, SYNCHRONOUS_S, SYNCHRONOUS_SOURCE
from servegym.latency_models.building.recipe import OPERATOR_TABLES, DeviceModel, Recipe
from servegym.latency_models.documents import to_text
from servegym.latency_models.fitting import measure
from servegym.latency_models.sampling import BatchRange
from servegym.latency_models.step_models import sampling
from servegym.latency_models.step_models.known_configs import own_config
from servegym.latency_models.step_models.library import PACKAGE, StepModel, library_version
from servegym.latency_models.step_models.naming import Served, served
from servegym.replacing import replacing
from servegym.simulator.compilation.cache import cache_root

MAKING = 7  # increment it when the same library gives another profile
COMPARED = 1500  # batches on which the form is compared with the library
STATEMENT = (
    "The device form is compared with steps of aiconfigurator-core, which composes them from operators measured under "
    "this engine; the estimator with the device form. No iteration of an engine was measured."
)
OF_RANKS = (
    " An engine is one of {dp} data-parallel ranks that share the experts; its steps take as long as where all have as "
    "many tokens: --engines {dp} --lockstep {dp} simulates them together."
)
METHOD = (
    "Tables of a step without attention, of prefill and of decode attention, and of decodes alone, sampled from "
    "aiconfigurator-core's step model (latency_models/step_models)."
)


def made_profile(name: str) -> dict[str, Any]:
    """Load the profile of a device SYSTEM:MODEL[:...], a JSON document, from the cache, else make it in some seconds.

    Raises the errors of `served` and `StepModel`, and ProfileError if the library is not installed.
    """
    wanted, version = served(name), library_version()
    file = cache_root() / "devices" / f"{wanted.name}-{_digest(wanted, version)}.json"
    if file.is_file():
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return document
    document = build(wanted, version)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as draft:
        draft.write_text(to_text(document), encoding="utf-8")
    return document


def _digest(wanted: Served, version: str) -> str:
    """Digest everything on which the profile depends; the user's config.json may change."""
    digest = hashlib.sha256(f"{wanted.text} {version} {MAKING} {sampling.REST_ERROR}".encode())
    config = own_config(wanted)
    if config is not None:
        digest.update(config.read_bytes())
    return digest.hexdigest()[:12]


def build(wanted: Served, version: str, cpu_overhead_s: float = SYNCHRONOUS_S) -> dict[str, Any]:
    """Make the profile, a JSON document. Raises ProfileError if the library has no data, or the model does not fit."""
    model = StepModel(wanted)
    kv = model.kv_cache()
    gpus = "one" if wanted.tp == 1 else f"{wanted.tp} x"
    ranks = "" if wanted.dp == 1 else f", one of {wanted.dp} data-parallel ranks"
    recipe = Recipe(
        name=_profile_name(wanted),
        title=f"{wanted.model} on {gpus} {wanted.system}{ranks}",
        hardware=wanted.system,
        model=f"{wanted.model} ({wanted.weights or 'as published'})",
        make=lambda batches, seed, overhead_s: _device_model(model, batches),
        basis=OPERATOR_TABLES,
        statement=STATEMENT + (OF_RANKS.format(dp=wanted.dp) if ranks else ""),
        method=METHOD,
        sources=({"table": wanted.text, "repository": PACKAGE, "commit": version, "licence": "Apache-2.0"},),
        tensor_parallel=wanted.tp,
        limits=BatchRange(cached_tokens_in_batch=min(MOST_CACHED, kv["total_blocks"] * kv["block_tokens"])),
        estimator="table" if model.has_experts else "linear",
    )
    return document_of(recipe, kv, cpu_overhead_s, SYNCHRONOUS_SOURCE, command=f"servegym profile make {wanted.text}")


def _profile_name(wanted: Served) -> str:
    return wanted.name.replace("_", "-").strip("-.")


def _device_model(model: StepModel, batches: np.ndarray) -> DeviceModel:
    made = sampling.latency_model(model)
    alike = sampling.alike(batches[:COMPARED])
    return DeviceModel(made, {"device_vs_composition": measure(made, alike, sampling.step_s(model, alike))})
