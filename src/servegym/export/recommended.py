"""A recommendation as files: what starts the engines, what starts the proxy before them, and a manifest."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from servegym import __version__
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.errors import ExportError
from servegym.evaluation.assumptions import estimator_of, usual_demand
from servegym.evaluation.identity import versions
from servegym.evaluation.recommend.recommending import Recommendation
from servegym.evaluation.recommend.setups import Setup
from servegym.export.sources import FIND
from servegym.export.targets import export, write_text

POLICY, ENGINE, PROXY, MANIFEST = "policy.json", "vllm.sh", "proxy.sh", "kubernetes.yaml"
PORT, IMAGE = 8000, "vllm/vllm-openai:v0.33.0"
DEPLOYED = Path(__file__).with_name("kubernetes.yaml")  # deploy/kubernetes.yaml is a link to it
POLICY_VARIABLE = "SERVEGYM_POLICY"
PLUG_IN = "policy.vllm.sh"
MARK, MARK_OF_POLICY = "; servegym ", '"recommended":'  # in every file that is written here
HERE = '"$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"'  # the folder of a script


class Written(NamedTuple):
    """files: in the order they were written. notes: what they leave to be done."""

    files: list[Path]
    notes: list[str]


def export_recommendation(found: Recommendation, directory: Path) -> Written:
    """Write what runs the recommended setup: vllm.sh; proxy.sh and policy.json where there are several engines;
    kubernetes.yaml.

    Raises ExportError for files that cannot be written, or that would replace others'.
    """
    check_replaceable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    setup, engines = found.best.best["setup"], int(found.best.best["engines"])
    files, notes = _policies(found, setup, engines, directory)
    files.append(write_text(directory / ENGINE, _engine_script(setup)))
    if engines > 1:
        files.append(write_text(directory / PROXY, _proxy_script(setup)))
    files.append(write_text(directory / MANIFEST, manifest(setup, engines, found.best.profile.tensor_parallel)))
    if setup.prefill_share is not None and engines > 1:
        prefill, decode = setup.pools(engines)
        notes.append(
            f"{prefill} of the engines prefill and {decode} decode: vLLM needs --kv-transfer-config for that, which is "
            "not in these files"
        )
    return Written(files, notes)


def check_replaceable(directory: Path) -> None:
    """Raise ExportError if a file of another origin has a name that `export_recommendation` may write."""
    for name in (POLICY, PLUG_IN, ENGINE, PROXY, MANIFEST):
        path = directory / name
        if not (path.exists() or path.is_symlink()):
            continue
        try:
            own = (MARK_OF_POLICY if name == POLICY else MARK) in path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            own = False
        if not own:
            raise ExportError(f"{path} is there, and not a file of servegym recommend; name another folder")


def vllm_flags(setup: Setup) -> list[str]:
    """Return the limits and options of a setup, as `vllm serve` takes them."""
    flags = ["--max-num-batched-tokens", str(setup.max_num_batched_tokens), "--max-num-seqs", str(setup.max_num_seqs)]
    if setup.long_prefill_token_threshold:
        flags += ["--long-prefill-token-threshold", str(setup.long_prefill_token_threshold)]
    if setup.prefix_caching is not None:
        flags.append("--enable-prefix-caching" if setup.prefix_caching == "on" else "--no-enable-prefix-caching")
    if setup.scheduler.endswith("policy=priority"):
        flags += ["--scheduling-policy", "priority"]
    return flags


def manifest(setup: Setup, engines: int, gpus: int) -> str:
    """Write the manifests of deploy/ as YAML, with the engines and flags of a setup; without what it does not need: the
    proxy before a single engine, the policy of engines without plug-in."""
    documents = list(yaml.safe_load_all(DEPLOYED.read_text("utf-8")))
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    deployment = found["Deployment", "engine"]["spec"]
    deployment["replicas"], pod = engines, deployment["template"]["spec"]
    (container,) = pod["containers"]
    container["args"] = ["MODEL", "--port", str(PORT), *vllm_flags(setup)]
    container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    if not setup.needs_plug_in:
        container["image"] = IMAGE
        container["env"] = [one for one in container["env"] if one["name"] != POLICY_VARIABLE]
        for place, key in ((container, "volumeMounts"), (pod, "volumes")):
            place[key] = [one for one in place[key] if one["name"] != "policy"]
    if engines == 1:
        documents = [one for one in documents if one["metadata"]["name"] != "proxy"]
    head = f"# {setup.label(engines)}; servegym {__version__}. MODEL is the model to serve.\n"
    if setup.needs_plug_in or engines > 1:
        head += f"#   kubectl create configmap servegym-policy --from-file={POLICY}\n"
        head += "# Images servegym-...: docs/deploy.md of servegym.\n"
    return head + yaml.safe_dump_all(documents, sort_keys=False)


def _policies(found: Recommendation, setup: Setup, engines: int, directory: Path) -> tuple[list[Path], list[str]]:
    """Make the artifact with the plug-in and the router, where either is needed; and what vLLM is to know."""
    named = {"scheduler": setup.scheduler} if setup.needs_plug_in else {}
    named |= {"router": setup.router} if engines > 1 else {}
    if not named:
        return [], []
    table = np.concatenate([window.table for window in found.windows.to_choose])
    artifact = Artifact(
        {role: FIND[role](text) for role, text in named.items()},
        estimator=estimator_of(found.best.profile),
        workload={"slo": found.question.spec.demand.slo, **usual_demand(table), "traces": [found.name]},
        provenance={"recommended": named, "recording": found.name, "versions": versions()},
    )
    path = directory / POLICY
    if not setup.needs_plug_in:
        return [save_artifact(artifact, path)], []
    exported = export(artifact, "vllm", path)
    return list(exported.files), []


def _engine_script(setup: Setup) -> str:
    head = (
        f"#!/bin/sh\n# vLLM with {setup.label(1)}; servegym {__version__}\n"
        f"#     sh {ENGINE} MODEL ...\n"
    )  # fmt: skip
    start = "vllm serve"
    if setup.needs_plug_in:
        start = f"sh {HERE}/{PLUG_IN}"
    return f'{head}exec {start} "$@" {shlex.join(vllm_flags(setup))}\n'


def _proxy_script(setup: Setup) -> str:
    return (
        f"#!/bin/sh\n# Requests to the engines by {setup.router}; servegym {__version__}\n"
        f"#     sh {PROXY} --backend http://HOST:{PORT} --backend ...\n"
        f'exec servegym proxy --policy {HERE}/{POLICY} "$@"\n'
    )
