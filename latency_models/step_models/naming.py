"""Names of devices: SYSTEM:MODEL with options, such as h200_sxm:deepseek-ai/DeepSeek-V3:tp=8."""

from __future__ import annotations

import dataclasses
import re

from servegym.errors import ProfileError, unknown_name

PATTERN = re.compile(r"(?P<system>[a-z0-9_]+):(?P<model>[^:=]+)(?P<options>(?::[a-z]+=[^:]+)*)")
WHOLE = ("tp", "dp", "ep")
WEIGHTS = ("bf16", "fp8", "fp8_block", "int4_wo", "int8_wo", "nvfp4")
KV = ("bf16", "fp8", "int8")
ENGINES = ("vllm", "sglang", "trtllm")


@dataclasses.dataclass(frozen=True)
class Served:
    """A model on GPUs of a system, under an engine.

    system, model: the library's names; model may be the folder of a config.json with a known architecture.
    tp: tensor-parallel GPUs. dp: data-parallel ranks that share the experts; an engine is one of them. ep:
    expert-parallel GPUs, of the tp x dp GPUs. engine, version: of the kernels; version None: the newest in the library.
    weights, kv: precisions; None: the config's.
    """

    system: str
    model: str
    tp: int = 1
    dp: int = 1
    ep: int = 1
    engine: str = "vllm"
    version: str | None = None
    weights: str | None = None
    kv: str | None = None

    @property
    def name(self) -> str:
        """The name of its profile: all parts joined by hyphens."""
        parts = [
            self.system,
            self.model.split("/")[-1].lower(),
            self.weights,
            self.kv and f"kv-{self.kv}",
            f"tp{self.tp}" if self.tp > 1 else None,
            f"dp{self.dp}" if self.dp > 1 else None,
            f"ep{self.ep}" if self.ep > 1 else None,
            self.engine if self.engine != "vllm" else None,
            self.version,
        ]
        return "-".join(part for part in parts if part)

    @property
    def text(self) -> str:
        """The name that `served` parses."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[2:]}
        options = [f"{name}={fields[name]}" for name, default in DEFAULTS.items() if fields[name] != default]
        return ":".join([self.system, self.model, *options])


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Served)[2:]}


def is_served(name: str) -> bool:
    """Return whether a name is SYSTEM:MODEL, not that of a shipped profile or of a file."""
    return PATTERN.fullmatch(name) is not None and not name.endswith(".json")


def served(name: str) -> Served:
    """Parse a name. Raises ProfileError for an unknown option or value."""
    match = PATTERN.fullmatch(name)
    if match is None:
        raise ProfileError(f"device '{name}': it should be SYSTEM:MODEL[:tp=N...], as h100_sxm:Qwen/Qwen3-32B:tp=2")
    options: dict[str, int | str] = {}
    for text in filter(None, match["options"].split(":")):
        key, _, value = text.partition("=")
        if key not in DEFAULTS:
            raise ProfileError(f"device '{name}': " + unknown_name("option", key, DEFAULTS))
        if key in options:
            raise ProfileError(f"device '{name}': {key} is given twice")
        if key in WHOLE and not (value.isdecimal() and int(value) >= 1):
            raise ProfileError(f"device '{name}': {key} is {value}; it should be a whole number of 1 or more")
        for option, values in (("weights", WEIGHTS), ("kv", KV), ("engine", ENGINES)):
            if key == option and value not in values:
                raise ProfileError(f"device '{name}': " + unknown_name(option, value, values))
        options[key] = int(value) if key in WHOLE else value
    found = Served(match["system"], match["model"], **options)  # type: ignore[arg-type]
    if found.tp * found.dp % found.ep:
        gpus = f"tp, {found.tp}" if found.dp == 1 else f"tp x dp, {found.tp * found.dp}"
        raise ProfileError(f"device '{name}': ep is {found.ep}; it should divide {gpus}")
    return found
