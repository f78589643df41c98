"""What is exported: the winner of a study, the policy of a training, an artifact, or policies that are named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servegym.baselines import load
from servegym.baselines.artifact import KINDS, Artifact, load_artifact
from servegym.baselines.registry import (
    decode_scheduler,
    learned_path,
    router,
    router_names,
    scaler,
    scheduler,
    scheduler_names,
)
from servegym.errors import ExportError, ServegymError
from servegym.evaluation.assumptions import SLOS, are_own, estimator_of, workload_of
from servegym.evaluation.identity import versions
from servegym.evaluation.panels.provenance import artifact_path, trained_on
from servegym.latency_models.profile import load_profile
from servegym.simulator.policies.policy import Policy, from_json

OUTCOME, POLICY = "outcome.json", "policy.json"  # what a study, and a training, leave in their folders
ANY_TRACE = ("azure-conv",)  # for SLOs that are the same in every trace
FIND = {"scheduler": scheduler, "decode_scheduler": decode_scheduler, "router": router, "scaler": scaler}


def named_artifact(named: Mapping[str, str]) -> Artifact:
    """Load policies "name:key=value" or "learned:PATH", by what they are for; trained on what the learned ones were,
    and those that are only named on nothing. Raises PolicyError, ArtifactError, ProvenanceError."""
    policies = {role: FIND[role](text) for role, text in named.items()}
    provenance: dict[str, Any] = {"named": dict(named), "versions": versions()}
    paths = [path for path in map(artifact_path, named.values()) if path is not None]
    seen = [trained_on(load_artifact(path).provenance, path) for path in paths]
    if None not in seen:
        known = [one for one in seen if one is not None]
        provenance["trained_on"] = {
            "traces": sorted({trace for one in known for trace in one.traces}),
            "devices": sorted({device for one in known for device in one.devices}),
            "loads": sorted({load for one in known for load in one.loads}),
            "seeds": [{"first": first, "last": last} for one in known for first, last in one.seeds],
        }
    return Artifact(policies, provenance=provenance)


def source_artifact(source: str) -> Artifact:
    """Load the policies of a source, with its record of how they were made.

    source: folder of `servegym tune` (or of one of its studies), folder of `servegym train`, file of an artifact, or
    the name of a learned policy that ships. Raises ExportError for anything else, ArtifactError and PolicyError for
    what is in it.
    """
    path = Path(source)
    if path.is_dir():
        return _of_folder(path)
    if path.name == OUTCOME and path.is_file():
        return _of_study(path)
    if len(path.parts) > 1 and not path.exists():
        raise ExportError(
            f"{source}: there is no such folder or file; it should be a folder of servegym tune or train, or an "
            "artifact, a .json file"
        )
    if path.suffix == ".json" or not path.exists():
        for kind, names in (("scheduler", scheduler_names()), ("router", router_names())):
            if source in names:
                raise ExportError(f"{source} is a {kind} by name; it should be --{kind} {source}")
        return load_artifact(learned_path(source))
    raise ExportError(f"{source}: it should be a folder of servegym tune or train, or an artifact, a .json file")


def completed(
    artifact: Artifact,
    device: str | None = None,
    slo: str | None = None,
    traces: Sequence[str] = (),
    read_by: Mapping[str, Any] | None = None,
) -> Artifact:
    """Return the artifact with the assumptions that are asked for replaced.

    device: latency profile whose estimator it gets. slo, traces: recipe and traces that its workload is taken from.
    read_by: fields of a spec with the options for reading traces that are files. SLOs of one's own need no trace: all
    requests get them, and neither weights nor the worth of a first token change.
    Raises ProfileError, WorkloadError; ExportError for traces without a recipe to go with them.
    """
    workload, provenance = dict(artifact.workload or {}), dict(artifact.provenance)
    profile = None if device is None else load_profile(device)
    if slo is not None or traces:
        slo = slo or workload.get("slo")
        traces = traces or workload.get("traces", ())
        if slo is None or not (traces or are_own(slo)):
            missing = "--slo RECIPE" if slo is None else "--trace NAME"
            raise ExportError(f"SLOs and weights are what a recipe gives to the requests of a trace; say {missing} too")
        found = workload_of(slo, traces or ANY_TRACE, profile, read_by)
        provenance["workload_notes"] = found.pop("notes")
        workload = {name: value for name, value in workload.items() if name not in SLOS}
        workload |= found if traces else {name: found[name] for name in ("slo", *SLOS) if name in found}
    estimator = artifact.estimator if profile is None else estimator_of(profile)
    return dataclasses.replace(artifact, estimator=estimator, workload=workload or None, provenance=provenance)


def _of_folder(folder: Path) -> Artifact:
    if (folder / OUTCOME).is_file():
        return _of_study(folder / OUTCOME)
    if (folder / POLICY).is_file():
        return load_artifact(folder / POLICY)
    studies = sorted(path.parent.name for path in folder.glob(f"*/{OUTCOME}"))
    if len(studies) == 1:
        return _of_study(folder / studies[0] / OUTCOME)
    if studies:
        raise ExportError(f"{folder} has the studies {', '.join(studies)}; name one, such as {folder / studies[0]}")
    raise ExportError(
        f"{folder}: nothing to export; it should be a folder of servegym tune ({OUTCOME}) or servegym train ({POLICY})"
    )


def _of_study(path: Path) -> Artifact:
    """Load the winner of a study, from its outcome."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        config = document["config"]
        panel = config["panel"]
        if panel.get("speculation") is not None:
            raise ExportError(
                f"{path}: the engines of this study speculate, and an artifact's estimator does not know of drafts; "
                "tune without speculation to export"
            )
        policies = {
            role: _study_policy(role, one, config, document["study"], path)
            for role, one in document["winner"]["policies"].items()
        }
        provenance = {
            "trained_on": _trained_on(config, document["seeds"]),
            **{key: document[key] for key in ("tuning", "study", "description")},
            "winner": {key: document["winner"][key] for key in ("candidate", "is_defaults", "settings")},
            **{key: document[key] for key in ("trials", "scores", "seeds", "versions", "code")},
            "panel": panel,
            "validation": config["validation"],
            "test": config["test"],
        }
        traces, slo, devices = panel["trace"], panel["slo"], panel["device"]
        made_for = {"devices": devices, "loads": panel["load"]} | {
            key: panel[key] for key in ("requests", "engines", "prefill", "decode")
        }
    except ServegymError:
        raise
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ExportError(f"{path}: {what}; it should be what servegym tune wrote, whole") from None
    if made_for["prefill"]:
        made_for["engines"] = 0
    artifact = Artifact(policies, provenance=provenance)
    artifact = completed(artifact, devices[0] if len(devices) == 1 else None, slo, traces, panel)
    return dataclasses.replace(artifact, workload={**(artifact.workload or {}), **made_for})


def _study_policy(role: str, document: Mapping[str, Any], config: Mapping[str, Any], study: str, path: Path) -> Policy:
    """Return a policy as a study names it; one with a network from where the study had it."""
    if role not in KINDS:
        raise ExportError(f"{path}: there is a policy for {role!r}; it should be one of {', '.join(KINDS)}")
    load()
    if "weights_sha256" not in document:
        return from_json(document)
    policy = FIND[role](config["studies"][study].get(role) or config["panel"][role])
    if policy.weights.sha256 != document["weights_sha256"]:
        raise ExportError(f"{path}: the weights of {policy.label} are no longer those that the study ran with")
    return policy


def _trained_on(config: Mapping[str, Any], seeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return all cases that the search and the choice of its winner have used."""
    panels = [config[which] for which in ("panel", "validation")]
    return {
        **{
            f"{key}s": sorted({value for panel in panels for value in panel[key]})
            for key in ("trace", "device", "load")
        },
        "seeds": [seeds[which] for which in ("panel", "validation")],
    }
