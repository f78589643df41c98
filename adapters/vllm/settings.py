"""Settings of the plug-in, from the environment and from vLLM's `--additional-config`."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.errors import VllmError

SECTION = "servegym"  # of --additional-config '{"servegym": {"policy": "policy.json"}}'
PREFIX = "SERVEGYM_"  # of the environment: SERVEGYM_POLICY=policy.json
ENFORCEMENTS = ("exact", "order")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the plug-in.

    policy: file of the artifact with the scheduler that decides.
    estimator: latency profile (name or file) instead of the artifact's estimator; "": the artifact's.
    enforce: "exact" (each request gets the planned chunk) or "order" (only vLLM's public attributes are used: order,
        budget and caps; docs/vllm_reference.md lists the differences).
    decision_limit_s: a decision that takes longer is not used, and vLLM decides.
    correct: whether the estimator is corrected by measured steps.
    step_log: file for a log of steps, a line of JSON each; "": no log.
    metrics_port: port on the loopback address where the counters are served; 0: no port.

    Raises VllmError for a value that is out of range.
    """

    policy: str
    estimator: str = ""
    enforce: str = "exact"
    decision_limit_s: float = 0.01
    correct: bool = True
    step_log: str = ""
    metrics_port: int = 0

    def __post_init__(self) -> None:
        if not Path(self.policy).is_file():
            raise VllmError(f"policy is {self.policy!r}; it should be the file of an artifact (servegym export)")
        if self.enforce not in ENFORCEMENTS:
            raise VllmError(f"enforce is {self.enforce!r}; it should be one of {', '.join(ENFORCEMENTS)}")
        if not 0 < self.decision_limit_s < math.inf:
            raise VllmError(f"decision_limit_s is {self.decision_limit_s}; it should be above 0")
        if not 0 <= self.metrics_port < 2**16:
            raise VllmError(f"metrics_port is {self.metrics_port}; it should be a port, or 0 for none")


def read_settings(
    additional_config: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Read settings from the environment, else from `--additional-config`, else the defaults. Raises VllmError."""
    environment = os.environ if environment is None else environment
    section = (additional_config or {}).get(SECTION, {})
    if not isinstance(section, Mapping):
        raise VllmError(f"--additional-config: {SECTION} is {section!r}; it should be an object with settings")
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    if unknown := sorted(set(section) - set(fields)):
        raise VllmError(f"--additional-config: {SECTION} has no {unknown[0]!r}; it has {', '.join(fields)}")
    given = dict(section)
    given |= {name: environment[PREFIX + name.upper()] for name in fields if environment.get(PREFIX + name.upper())}
    if "policy" not in given:
        raise VllmError(
            f"no policy: set {PREFIX}POLICY to the file of an artifact (servegym export --target vllm), or give it in "
            f'--additional-config \'{{"{SECTION}": {{"policy": FILE}}}}\''
        )
    return Settings(**{name: _as(str(fields[name].type), name, value) for name, value in given.items()})


def _as(kind: str, name: str, value: Any) -> Any:
    """Convert a setting, text or JSON, to the type of its field. Raises VllmError."""
    try:
        if kind == "bool":
            return {"1": True, "true": True, "0": False, "false": False}[str(value).lower()]
        if isinstance(value, bool | list | dict | None):
            raise ValueError
        return {"str": str, "int": int, "float": float}[kind](value)
    except (KeyError, ValueError, OverflowError):
        right = {"bool": "1 or 0", "int": "a whole number", "float": "a number", "str": "text"}[kind]
        raise VllmError(f"{name} is {value!r}; it should be {right}") from None
