"""Kinds of episodes by name: `gym.make("servegym:EngineBatching-v0", preset="overload")`."""

from __future__ import annotations

from typing import Any, NamedTuple

from servegym.errors import SpecError
from servegym.scenarios.parts import BURST, STEADY
from servegym.scenarios.ranges import Range


class Preset(NamedTuple):
    """doc: what it is for. words: fields of a `ServingSpec` and their values."""

    doc: str
    words: dict[str, Any]


PRESETS = {
    "light": Preset(
        "less than engines can serve: what matters is the wait of each request",
        {"load": Range(0.2, 0.6), "load_profile": (STEADY,)},
    ),
    "overload": Preset(
        "more than engines can serve: what matters is whom to serve in time",
        {"load": Range(1.2, 1.8), "load_profile": (STEADY,)},
    ),
    "burst": Preset(
        "a burst between calm parts: queues build up and drain",
        {"load": Range(1.2, 2.0), "load_profile": (BURST,)},
    ),
    "mixed-devices": Preset(
        "each episode on another device, at any load: a policy has to do without learning one device by heart",
        {
            "device": (
                "a100-llama3-8b", "a100-llama3-70b-tp8", "a100-qwen3-30b-a3b", "a6000-llama3.1-8b", "h100-llama3-8b",
                "ascend910b-qwen3-8b",
            ),
            "load": Range(0.2, 1.8),
        },
    ),
    "long-prompts": Preset(
        "code completion and long documents: prefills decide how long others wait",
        {"trace": ("azure-code", "mooncake-conversation")},
    ),
}  # fmt: skip


def words_of(preset: str) -> dict[str, Any]:
    """Raises SpecError for one that there is not."""
    if preset not in PRESETS:
        raise SpecError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    return PRESETS[preset].words
