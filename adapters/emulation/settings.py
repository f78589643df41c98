"""The settings of an emulated device, read from the environment: vLLM passes no settings to its executors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servegym.errors import EmulationError
from servegym.latency_models.profile import Profile, load_profile

DEVICE, TIME, DEVICE_LOG = "SERVEGYM_DEVICE", "SERVEGYM_TIME", "SERVEGYM_DEVICE_LOG"
VIRTUAL = math.inf


@dataclass(frozen=True)
class Settings:
    """Settings of an emulated device. speed: device seconds a real second; VIRTUAL: steps take no real time, and the
    clock is the device's. log: a CSV file for a line a step; None: no log.
    """

    profile: Profile
    speed: float = 1.0
    log: Path | None = None

    @property
    def virtual(self) -> bool:
        return self.speed == VIRTUAL

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from environment variables. Raises EmulationError or ProfileError."""
        device = environment.get(DEVICE)
        if not device:
            raise EmulationError(f"{DEVICE} is not set: give it the name of a profile or the path of its JSON file")
        log = environment.get(DEVICE_LOG)
        return cls(load_profile(device), parse_speed(environment.get(TIME) or "real"), Path(log) if log else None)


def parse_speed(text: str) -> float:
    """Parse 'real', 'virtual', or a number of device seconds a real second. Raises EmulationError."""
    if text in ("real", "virtual"):
        return 1.0 if text == "real" else VIRTUAL
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed < math.inf:
        raise EmulationError(
            f"{TIME} is {text!r}: it should be real, virtual, or a number above 0 (0.25: steps take four times as long "
            "as on the device)"
        )
    return speed
