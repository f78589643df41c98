"""Latency profiles: a device with a model, as a device model, an estimator and a KV cache.

Time of a batch on the device = the profile's device form + cpu_overhead_s.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from servegym.errors import DeploymentError, ProfileError, unknown_name
from servegym.latency_models.forms import estimator_forms
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.operators import Operators
from servegym.latency_models.step_models.naming import is_served
from servegym.parsing import Malformed, parse_json, schema_problem
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.inputs.costs import Costs
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.device_steps import step_tokens
from servegym.simulator.inputs.scenario import token_budget_within
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.records.types import BATCH

FOLDER = resources.files("servegym.latency_models.profiles")
SCHEMA = "schema.json"
MOST_GIB = 2**20  # of host memory: 1 PiB an engine


@dataclass(frozen=True)
class KvCache:
    """The device's KV memory, in blocks of block_tokens tokens.

    groups: KV cache groups, for layers that keep different parts of a request. With groups, block_tokens is the mean of
    tokens in a block for requests of 4,096 tokens, and policies count with it.
    """

    bytes_per_token: int
    block_tokens: int
    usable_bytes: int
    total_blocks: int
    groups: tuple[KvCacheGroup, ...] = ()


@dataclass(frozen=True, eq=False)
class Profile:
    """A device with a model, as the simulator and the policies know it.

    name, title, hardware, model, tensor_parallel: describe it. basis: source of the device model.
    device: the time of a batch, with CPU overhead. estimator: a policy's estimate of that time.
    cpu_overhead_s: seconds of every iteration in which the device waits for the CPU; part of `device`.
    kv: the KV cache. valid: lowest and highest batch_tokens, sequences, cached_tokens (of a request) and
        cached_tokens_in_batch for which errors were measured. error, provenance: as in the file.
    operators: of a layer, with their times in a batch of prefills; None: not known.
    front_end: delays between clients and the engine; None: not known, and 0.
    """

    name: str
    title: str
    hardware: str
    model: str
    tensor_parallel: int
    basis: str
    device: LatencyModel
    estimator: LatencyModel
    cpu_overhead_s: float
    kv: KvCache
    valid: Mapping[str, tuple[int, int]]
    error: Mapping[str, Any]
    provenance: Mapping[str, Any]
    operators: Operators | None = None
    front_end: FrontEnd | None = None

    @functools.cached_property
    def idle_tpot_s(self) -> float:
        """Time between tokens of a single request on the device, with 512 cached tokens."""
        batch = np.zeros(1, BATCH)
        batch["decode_requests"] = 1
        batch["decode_cached_tokens"] = batch["longest_decode_cached"] = 512
        return float(self.device.evaluate(batch)[0])

    @functools.cached_property
    def step_tokens(self) -> int:
        """Number of tokens after whose multiples the time of a batch has a step, from profiling; 0: no steps."""
        return step_tokens(self.device)

    def profiled_token_budget(self, tpot_slo_s: float, cached_tokens: float = 0.0) -> int:
        """The largest batch of prefill tokens, in steps of 16, whose estimated time is within a TPOT SLO, as
        Sarathi-Serve profiles its budget. cached_tokens: cached before them."""
        return token_budget_within(tpot_slo_s, cached_tokens, self.estimator)

    def host_memory(self, gib: float, gb_per_s: float) -> HostMemory:
        """Host memory of `gib` GiB for the KV of each engine, moved both ways at `gb_per_s` GB/s.

        Raises DeploymentError for a number out of range.
        """
        if not (0 <= gib <= MOST_GIB and 0 < gb_per_s <= math.inf):
            raise DeploymentError(
                f"host memory of {gib} GiB at {gb_per_s} GB/s: it should be 0 to {MOST_GIB:,}, and above 0"
            )
        blocks = int(gib * 2**30 // (self.kv.block_tokens * self.kv.bytes_per_token))
        s_per_token = self.kv.bytes_per_token / (gb_per_s * 1e9)
        return HostMemory(blocks, s_per_token, s_per_token)

    def deployment(self, engines: int = 1, watermark: float = 0.01, host: HostMemory | None = None) -> Deployment:
        """`engines` engines of this device and model. Raises DeploymentError for a number out of range."""
        return Deployment(
            self.device,
            self.estimator,
            self.kv.total_blocks,
            engines,
            self.kv.block_tokens,
            watermark,
            name=self.name if engines == 1 else f"{engines} x {self.name}",
            host=host,
            operators=None if self.operators is None else self.operators.boundaries,
            costs=costs_of(self.hardware, self.tensor_parallel),
            kv_groups=self.kv.groups,
        )


ERROR_CLASSES = {
    "measured batches": "measured",
    "operator tables": "tables",
    "operator tables, partly derived": "tables",
    "approximate: chip specification": "roofline",
}


def error_class(profile: Profile) -> str:
    """The source of a profile's device model in a word: measured, tables, roofline; else `basis`."""
    return ERROR_CLASSES.get(profile.basis, profile.basis)


def profile_names() -> list[str]:
    """Names of the profiles that ship, in alphabetical order."""
    return sorted(
        file.name.removesuffix(".json")
        for file in FOLDER.iterdir()
        if file.name.endswith(".json") and file.name != SCHEMA
    )


def load_profile(name: str | Path) -> Profile:
    """Load a profile: one that ships, by name; a JSON file with the schema schema.json, by path; or
    SYSTEM:MODEL[:tp=N...], made by aiconfigurator-core if that is installed (`step_models`).

    After the name or path, ":estimator=FORM", ":cpu_overhead_ms=NUMBER" and ":kv_groups=mean" change it (`CHANGES`).

    Raises ProfileError for an unknown name or a missing file, and for a file that is not JSON, does not have the
    schema, names an unknown form, or has a number out of range.
    """
    if isinstance(name, str) and ":" in name:
        from servegym.latency_models.changed import CHANGES

        rest, _, option = name.rpartition(":")
        key, _, value = option.partition("=")
        if key in CHANGES:
            return CHANGES[key](load_profile(rest), value)
    # Tests validate shipped profiles; validating them here would take a tenth of a short run.
    ships = isinstance(name, str) and not is_served(name) and not _is_path(name)
    return (_made_of if ships else parse_profile)(profile_document(name), _where(name))


def profile_document(name: str | Path) -> Any:
    """Load the JSON of a shipped profile, or of a file, unchecked. Raises ProfileError if there is none."""
    path = Path(name)
    source: Path | Traversable
    if isinstance(name, str) and is_served(name):
        from servegym.latency_models.step_models.profiles import made_profile

        return made_profile(name)
    if _is_path(name):
        source = path
    elif name in profile_names():
        source = FOLDER / f"{name}.json"
    else:
        raise ProfileError(
            unknown_name("profile", str(name), profile_names()) + ", the path of a .json file, or SYSTEM:MODEL"
        )
    where = _where(name)
    try:
        return parse_json(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{where} cannot be read: {error.strerror or error}") from None
    except Malformed as error:
        raise ProfileError(f"{where} is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{where} is not text in UTF-8; a profile is a JSON file") from None


def _is_path(name: str | Path) -> bool:
    path = Path(name)
    return isinstance(name, Path) or path.suffix == ".json" or path.name != name


def _where(name: str | Path) -> str:
    return f"profile {Path(name)}" if _is_path(name) else f"profile '{name}'"


def parse_profile(document: Any, where: str) -> Profile:
    """Make the profile of a JSON document. Raises the errors of `load_profile`, with `where` in front."""
    if problem := schema_problem(document, json.loads((FOLDER / SCHEMA).read_text(encoding="utf-8")), SCHEMA):
        raise ProfileError(f"{where}: {problem}")
    return _made_of(document, where)


def _made_of(document: Any, where: str) -> Profile:
    """Make the profile of a validated document. Raises ProfileError."""
    device, estimator = (
        LatencyModel.from_values(document[role]["form"], document[role]["coefficients"], f"{where}: {role}")
        for role in ("device", "estimator")
    )
    if estimator.definition.core_s is None:
        raise ProfileError(
            f"{where}: estimator: form '{estimator.form}' has no time of a request alone; "
            f"these have one: {', '.join(estimator_forms())}"
        )
    kv = dict(document["kv"])
    del kv["arithmetic"]
    kv["groups"] = tuple(KvCacheGroup(**group) for group in kv.get("groups", ()))
    if kv["total_blocks"] * kv["block_tokens"] * kv["bytes_per_token"] > kv["usable_bytes"]:
        most = kv["usable_bytes"] // (kv["block_tokens"] * kv["bytes_per_token"])
        raise ProfileError(f"{where}: kv: total_blocks is {kv['total_blocks']}; usable_bytes hold {most} at most")
    return Profile(
        operators=_operators(document["operators"], where) if "operators" in document else None,
        front_end=_front_end(document["front_end"], where) if "front_end" in document else None,
        **{field: document[field] for field in ("name", "title", "hardware", "model", "tensor_parallel", "basis")},
        device=device.plus_constant(document["cpu_overhead_s"]),
        estimator=estimator,
        cpu_overhead_s=float(document["cpu_overhead_s"]),
        kv=KvCache(**kv),
        valid={key: (low, high) for key, (low, high) in document["valid"].items()},
        error=document["error"],
        provenance=document["provenance"],
    )


def _operators(part: Mapping[str, Any], where: str) -> Operators:
    names, rows = part["names"], part["coefficients"]
    if len(names) != len(rows):
        raise ProfileError(f"{where}: operators: {len(names)} names and {len(rows)} rows of coefficients")
    empty = [name for name, row in zip(names, rows, strict=True) if not any(row)]
    if empty:
        raise ProfileError(f"{where}: operators: {empty[0]} takes no time; one of its coefficients must be above 0")
    coefficients = np.array(rows, dtype=np.float64)
    return Operators(part["layers"], coefficients, tuple(names), tuple(part.get("derived", ())), part.get("error", {}))


def _front_end(part: Mapping[str, Any], where: str) -> FrontEnd:
    try:
        return FrontEnd(**{name: value for name, value in part.items() if name not in ("source", "error")})
    except DeploymentError as error:
        raise ProfileError(f"{where}: {error}") from None


DEVICES_FILE = resources.files("servegym.latency_models") / "devices.json"
DEVICE_FIELDS = ("price_per_hour", "idle_w", "busy_w", "most_w")


@functools.cache
def devices() -> dict[str, dict[str, Any]]:
    """Facts by hardware, as profiles name it: each of `DEVICE_FIELDS`, None if not known, else with its
    `..._source`."""
    known: dict[str, dict[str, Any]] = json.loads(DEVICES_FILE.read_text(encoding="utf-8"))["devices"]
    return known


def costs_of(hardware: str, count: int) -> Costs:
    """Known prices and powers of an engine on `devices` devices."""
    one = devices().get(hardware, {})
    return Costs(**{name: count * one[name] for name in DEVICE_FIELDS if one.get(name) is not None})
