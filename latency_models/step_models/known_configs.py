"""Finds and reads the config.json of a served model: the user's own, or the library's copy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from servegym.errors import ProfileError
from servegym.latency_models.building.huggingface import read_document
from servegym.latency_models.model_configs.precision import Precision
from servegym.latency_models.model_configs.reading import Architecture, read
from servegym.latency_models.step_models.naming import Served

KV_READ = {"bf16": "bf16", "fp8": "fp8", "int8": "fp8"}  # our name for each precision of the library, by bytes


def model_of(served: Served) -> str:
    """Return the name by which the library finds the model; for a folder or a config.json, the folder's path."""
    path = Path(served.model)
    if path.name == "config.json" and path.is_file():
        return str(path.parent)
    return served.model


def own_config(served: Served) -> Path | None:
    """Return the user's config.json, if the model is given as one or as its folder."""
    own = Path(model_of(served)) / "config.json"
    return own if own.is_file() else None


def config_of(served: Served) -> Path | None:
    """Return the user's config.json, else the library's copy, else None."""
    package = importlib.util.find_spec("aiconfigurator_core")
    if own_config(served) or package is None or package.origin is None:
        return own_config(served)
    known = Path(package.origin).parent / "model_configs" / f"{served.model.replace('/', '--')}_config.json"
    return known if known.is_file() else None


def architecture_of(served: Served) -> Architecture | str:
    """Read the model's layers from its config.json, or return the reason why they are not known."""
    path = config_of(served)
    if path is None:
        return "there is no config.json of it"
    try:
        given = None if served.kv is None else Precision(kv=KV_READ[served.kv])
        return read(read_document(path), served.model, given)
    except ProfileError as error:
        return str(error)


def kv_precision(served: Served) -> str | None:
    """Return the precision of cached keys and values: the given one, else that of the config.json; None: not known."""
    model = architecture_of(served)
    return served.kv or (model.precision.kv if isinstance(model, Architecture) else None)
