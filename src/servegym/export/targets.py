"""Export targets of an artifact: a file for servegym itself, and beside it the files that start an engine or Ray
Serve.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from servegym import __version__
from servegym.adapters.sglang.configuration import VERSION as SGLANG_VERSION
from servegym.adapters.sglang.configuration import sglang_configuration
from servegym.adapters.xllm.configuration import Configuration, xllm_configuration
from servegym.adapters.xllm.flags import load_version, version_numbers
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.errors import ExportError
from servegym.replacing import replacing

VLLM_SCHEDULER = "servegym.adapters.vllm.AsyncScheduler"
RAY_ROUTER = "servegym.adapters.routing.ray_serve:PolicyRouter"
RAY_STATS_PERIOD_S = 0.2


@dataclasses.dataclass(frozen=True)
class Exported:
    """files: what was written, the artifact first. how: what to run, a line each. notes: what else to know."""

    artifact: Artifact
    files: tuple[Path, ...]
    how: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def export(artifact: Artifact, target: str, path: Path, xllm_version: str | None = None) -> Exported:
    """Write an artifact for a target of `TARGETS`, whole or not at all; nothing is written where it does not suit.

    path: a .json file; what belongs to a target goes beside it, STEM.TARGET... xllm_version: "0.10"; None: the newest.
    Raises ExportError where the target does not take these policies, XllmError and ArtifactError.
    """
    if target not in TARGETS:
        raise ExportError(f"unknown target {target!r}; there are {', '.join(TARGETS)}")
    if xllm_version is not None and target != "xllm":
        raise ExportError(f"a version of xLLM is given, and the target is {target}")
    if path.suffix != ".json":
        raise ExportError(f"{path}: an export is a .json file")
    return TARGETS[target](artifact, path, xllm_version)


def _to_servegym(artifact: Artifact, path: Path, version: str | None) -> Exported:
    return Exported(artifact, (save_artifact(artifact, path),), (f"servegym evaluate {shlex.quote(str(path))}",))


def _to_vllm(artifact: Artifact, path: Path, version: str | None) -> Exported:
    if artifact.scheduler is None:
        raise ExportError(
            f"{artifact.label}: vLLM takes a scheduler, and the artifact has none; --target ray takes a router"
        )
    _check_estimator(artifact, "vLLM")
    script = path.with_suffix(".vllm.sh")
    text = (
        "#!/bin/sh\n"
        f"# vLLM with the scheduler {_in_a_comment(artifact.scheduler.label)}; servegym {__version__}\n"
        "# has to be installed where vLLM is: in a clone, pip wheel --no-deps . makes the wheel to install there\n"
        "# (docs/deploy.md has a container). With --no-async-scheduling it is the class Scheduler.\n"
        f"#     sh {_in_a_comment(script.name)} MODEL ...\n"
        f'SERVEGYM_POLICY="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"/{shlex.quote(path.name)}\n'
        "export SERVEGYM_POLICY\n"
        f'exec vllm serve "$@" --async-scheduling --scheduler-cls {VLLM_SCHEDULER}\n'
    )
    notes = []
    if artifact.router is not None:
        notes.append(f"{artifact.router.label} is not vLLM's to run: servegym proxy routes by it")
    if artifact.decode_scheduler is not None:
        notes.append(f"{artifact.decode_scheduler.label} is of decode engines; vLLM gets the scheduler of the others")
    if artifact.workload is None:
        notes.append("the artifact has no SLOs: a request without any is never late (--slo and --trace set them)")
    files = (save_artifact(artifact, path), write_text(script, text))
    return Exported(artifact, files, (f"sh {shlex.quote(str(script))} MODEL",), tuple(notes))


def _to_sglang(artifact: Artifact, path: Path, version: str | None) -> Exported:
    made = sglang_configuration(artifact)
    script = path.with_suffix(".sglang.sh")
    document = {
        "target": "sglang",
        "version": SGLANG_VERSION,
        "policies": {role: policy.label for role, policy in artifact.policies.items()},
        "arguments": made.arguments,
        "priority_of_a_request": made.priority or None,
        "differences": list(made.differences),
        "provenance": dict(artifact.provenance),
    }
    text = (
        "#!/bin/sh\n"
        f"# SGLang {SGLANG_VERSION} with options for {_in_a_comment(artifact.label)}; servegym {__version__}.\n"
        f"#     sh {_in_a_comment(script.name)} --model-path MODEL ...\n"
        f'exec python -m sglang.launch_server "$@" {" ".join(made.arguments)}\n'
    )
    files = (write_text(path, _as_json(document)), write_text(script, text))
    notes = [f"each request is to be sent with this priority: {made.priority}"] if made.priority else []
    how = (f"sh {shlex.quote(str(script))} --model-path MODEL",)
    return Exported(artifact, files, how, (*notes, *made.differences))


def _to_ray(artifact: Artifact, path: Path, version: str | None) -> Exported:
    if artifact.router is None:
        raise ExportError(
            f"{artifact.label}: Ray Serve takes a router, and the artifact has none; --target vllm takes a scheduler"
        )
    _check_estimator(artifact, "Ray Serve")
    snippet = path.with_suffix(".ray.yaml")
    document = {
        "deployments": [
            {
                "name": "NAME",
                "request_router_config": {
                    "request_router_class": RAY_ROUTER,
                    "request_router_kwargs": {"policy": str(path.absolute())},
                    "request_routing_stats_period_s": RAY_STATS_PERIOD_S,
                },
            }
        ]
    }
    text = (
        f"# Ray Serve with the router {_in_a_comment(artifact.router.label)}; servegym {__version__}.\n"
        "# It goes into an application of a Serve config file: NAME is the deployment of your engines, and policy the\n"
        "# artifact where proxies and callers of that deployment run.\n"
        + yaml.safe_dump(document, sort_keys=False, width=10_000)
    )
    notes = []
    if artifact.scheduler is not None:
        notes.append(f"{artifact.scheduler.label} is not Ray Serve's to run: --target vllm gives it to the engines")
    files = (save_artifact(artifact, path), write_text(snippet, text))
    return Exported(artifact, files, (f"merge {snippet} into the config of serve deploy",), tuple(notes))


def _to_xllm(artifact: Artifact, path: Path, version: str | None) -> Exported:
    configuration = xllm_configuration(artifact, load_version(version or version_numbers()[-1]))
    flags = path.with_suffix(".flags.json")
    files = (
        write_text(path, _as_json(xllm_document(artifact, configuration))),
        write_text(flags, _as_json(dict(configuration.flags))),
    )
    how = (f"xllm --model MODEL --config_json_file={shlex.quote(str(flags))}",)
    unsupported = [
        f"xLLM has no flag for {name} ({part['value']}); it has {part['xllm']}"
        for name, part in configuration.without_flag.items()
        if name.startswith("scheduler.")
    ]
    routers = [name for name in configuration.without_flag if not name.startswith("scheduler.")]
    unsupported += [f"xLLM has no flag for {', '.join(routers)}"] if routers else []
    return Exported(artifact, files, how, (*unsupported, *configuration.notes))


def xllm_document(artifact: Artifact, configuration: Configuration) -> dict[str, Any]:
    """Make a configuration of xLLM, as JSON."""
    return {
        "target": "xllm",
        "version": configuration.version.number,
        "policies": {role: policy.label for role, policy in artifact.policies.items()},
        "flags": dict(configuration.flags),
        "arguments": configuration.arguments,
        "requests": {sender: dict(fields) for sender, fields in configuration.requests.items()},
        "no_flag_for": {name: dict(part) for name, part in configuration.without_flag.items()},
        "notes": list(configuration.notes),
        "checked_against": configuration.version.read_from,
        "provenance": dict(artifact.provenance),
    }


def _check_estimator(artifact: Artifact, program: str) -> None:
    if artifact.estimator is None:
        raise ExportError(
            f"{artifact.label}: it has no estimator of batch times, which {program} needs; give --device PROFILE"
        )


def _in_a_comment(text: str) -> str:
    """Write text as a part of a line that is a comment."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _as_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> Path:
    """Write a text atomically: if that fails, the old file stays. Returns the path."""
    try:
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


TARGETS: dict[str, Callable[[Artifact, Path, str | None], Exported]] = {
    "servegym": _to_servegym,
    "vllm": _to_vllm,
    "ray": _to_ray,
    "sglang": _to_sglang,
    "xllm": _to_xllm,
}
