"""What stands in for an old profile: a device whose recipe was judged by measured runs, and the old one's own terms put
right. Which for which, and why, is in better_devices.md."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments.measured.known_terms import ASYNCHRONOUS, FRONT_END, FRONT_END_SOURCE
from experiments.profiles.shapes import LLAMA_3_8B, LLAMA_3_70B, QWEN25_14B
from servegym.latency_models.building.from_config import TABLES, build
from servegym.latency_models.building.gpus import gpu
from servegym.latency_models.building.huggingface import Model
from servegym.latency_models.building.shapes import ModelShape
from servegym.latency_models.documents import latency, to_text
from servegym.latency_models.profile import load_profile, parse_profile, profile_document
from servegym.scenarios.saturation import saturation_rate_per_s

JUDGED, TERMS, SLOWED, RECIPE = "judged", "terms", "slowed", "recipe"
KINDS = {
    JUDGED: "H100, by the recipe that measured runs judged",
    TERMS: "the old profile, its CPU time hidden and with a front end",
    SLOWED: "the judged device, every batch longer, so that it serves as many requests a second as the old profile",
    RECIPE: "A100 by the recipe of the judged device",
}


EQUAL_ON = "azure-conv"


class Recipe(NamedTuple):
    """The model of an old profile, to be composed by tables of kernels."""

    model: str
    shape: ModelShape
    devices: int = 1


RECIPES = {
    "a100-llama3-8b": Recipe("Llama-3-8B", LLAMA_3_8B),
    "a100-qwen2.5-14b-tp2": Recipe("Qwen2.5-14B", QWEN25_14B, 2),
    "a100-llama3-70b-tp4": Recipe("Llama-3-70B", LLAMA_3_70B, 4),
}


def with_terms(document: dict[str, Any]) -> dict[str, Any]:
    """A profile as an asynchronous engine behind an HTTP server has it: without the CPU's time of a step, in the device
    and in what the estimator believes, and with a front end."""
    profile = parse_profile(document, document["name"])
    return document | {
        "cpu_overhead_s": 0.0,
        "cpu_overhead_source": ASYNCHRONOUS.source,
        "estimator": latency(profile.estimator.plus_constant(-profile.cpu_overhead_s)),
        "front_end": {
            "request_s": FRONT_END.before_s,
            "streamed_s_per_token": FRONT_END.after_s_per_token,
            "back_s": FRONT_END.after_s,
            "source": FRONT_END_SOURCE,
            "error": "Mean TTFT of 11 measured runs over HTTP, median absolute error: 7.6 % with it, 19.3 % without.",
        },
    }


def composed(old: str, gpu_name: str = "h100") -> dict[str, Any]:
    """The model of an old profile on other GPUs, with the terms. Raises ProfileError without SERVEGYM_DATA."""
    recipe = RECIPES[old]
    model = Model(recipe.model, recipe.shape, "bf16")
    return with_terms(build(gpu(gpu_name), model, recipe.devices, by=TABLES, cpu_overhead_s=0.0))


def slowed(old: str) -> dict[str, Any]:
    """The judged device with each batch so many times as long that both saturate at the same rate (`EQUAL_ON`)."""
    document = composed(old)
    fast = parse_profile(document, document["name"])
    factor = saturation_rate_per_s(EQUAL_ON, fast) / saturation_rate_per_s(EQUAL_ON, load_profile(old))
    longer = {role: latency(getattr(fast, role).times(factor)) for role in ("device", "estimator")}
    name, title = f"{document['name']}-slowed", f"{document['title']}, every batch {factor:.3g} times as long"
    return document | longer | {"name": name, "title": title}


def put_right(old: str) -> dict[str, Any]:
    """An old profile with the terms."""
    document = with_terms(profile_document(old))
    return document | {"name": f"{old}-terms", "title": f"{document['title']}, CPU time hidden, with a front end"}


def stand_ins(old: str) -> dict[str, Any]:
    """What makes the document of each kind of stand-in that there is for an old profile."""
    of_recipe = {JUDGED: partial(composed, old), SLOWED: partial(slowed, old), RECIPE: partial(composed, old, "a100")}
    return (of_recipe if old in RECIPES else {}) | {TERMS: partial(put_right, old)}


def write(old: str, kind: str, folder: Path) -> Path:
    """The profile of a stand-in as a file, made where it is not there yet."""
    path = folder / f"{old}-{kind}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(to_text(stand_ins(old)[kind]()), encoding="utf-8")
    load_profile(path)
    return path
