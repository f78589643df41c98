"""A recommendation as files: flags that vLLM takes, a policy that loads, and a manifest."""

import re
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from servegym.baselines.artifact import load_artifact
from servegym.errors import ExportError
from servegym.evaluation.recommend.setups import Setup
from servegym.export.recommended import DEPLOYED, export_recommendation, manifest, vllm_flags
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.workload import Workload
from tests.pages import ROOT

PROFILE = load_profile("a100-llama3-8b-tp2")
TABLE = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [100], "output_tokens": [10]})


def found(setup, engines):
    """What is asked of a recommendation."""
    best = SimpleNamespace(best={"setup": setup, "engines": engines}, profile=PROFILE)
    spec = SimpleNamespace(demand=SimpleNamespace(slo="ttft_s=1,tpot_s=0.05"))
    return SimpleNamespace(
        best=best, name="mine.csv", windows=SimpleNamespace(to_choose=[TABLE]), question=SimpleNamespace(spec=spec)
    )


def test_one_engine_as_it_is_needs_flags_only(tmp_path):
    written = export_recommendation(found(Setup(), 1), tmp_path)
    assert [path.name for path in written.files] == ["vllm.sh", "kubernetes.yaml"]
    assert 'exec vllm serve "$@" --max-num-batched-tokens 2048 --max-num-seqs 256' in written.files[0].read_text()


def test_engines_behind_a_router(tmp_path):
    written = export_recommendation(found(Setup(router="min-load"), 3), tmp_path)
    assert [path.name for path in written.files] == ["policy.json", "vllm.sh", "proxy.sh", "kubernetes.yaml"]
    artifact = load_artifact(tmp_path / "policy.json")
    assert artifact.router.name == "min-load" and artifact.scheduler is None
    assert artifact.workload["ttft_slo_s"] == 1.0 and artifact.estimator["profile"] == PROFILE.name


def test_a_plug_in(tmp_path):
    written = export_recommendation(found(Setup("edf", "min-load"), 2), tmp_path)
    names = [path.name for path in written.files]
    assert names == ["policy.json", "policy.vllm.sh", "vllm.sh", "proxy.sh", "kubernetes.yaml"]
    assert 'policy.vllm.sh "$@" --max-num-batched-tokens' in (tmp_path / "vllm.sh").read_text()
    assert "image: servegym-vllm" in (tmp_path / "kubernetes.yaml").read_text()


@pytest.mark.parametrize("name", ["kubernetes.yaml", "policy.json", "vllm.sh"])
def test_only_files_of_its_own_are_replaced(tmp_path, name):
    for router in ("min-load", "predicted-cost"):
        export_recommendation(found(Setup("edf", router), 2), tmp_path)
    ours = tmp_path / name
    ours.unlink()
    ours.symlink_to(DEPLOYED)
    with pytest.raises(ExportError, match=f"{name} is there, and not a file of servegym recommend"):
        export_recommendation(found(Setup(), 1), tmp_path)
    assert ours.is_symlink()


@pytest.mark.parametrize("setup", [Setup(), Setup("edf", "min-load")])
def test_the_scripts_are_right_shell(tmp_path, setup):
    for path in export_recommendation(found(setup, 2), tmp_path / "a folder").files:
        if path.suffix == ".sh":
            assert subprocess.run(["sh", "-n", path], check=False).returncode == 0


def documents(setup: Setup, engines: int) -> dict[tuple[str, str], dict]:
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(manifest(setup, engines, 2))}


@pytest.mark.parametrize("engines", [1, 4])
@pytest.mark.parametrize("setup", [Setup(router="min-load"), Setup("edf", "min-load")])
def test_the_manifest_is_valid(setup, engines):
    validator = pytest.importorskip("kubernetes_validate")
    for document in documents(setup, engines).values():
        validator.validate(document, "1.34", strict=True)


def test_the_manifest_of_a_plug_in_is_that_of_deploy_with_its_engines_and_flags():
    deployed = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(DEPLOYED.read_text("utf-8"))}
    found = documents(Setup("edf", "min-load", max_num_seqs=64), 4)
    engine = found["Deployment", "engine"]["spec"]
    container = engine["template"]["spec"]["containers"][0]
    assert engine["replicas"] == 4 and container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["args"][0] == "MODEL" and container["args"][-1] == "64"
    ours = deployed["Deployment", "engine"]["spec"]
    engine["replicas"] = ours["replicas"]
    for name in ("args", "resources"):
        container[name] = ours["template"]["spec"]["containers"][0][name]
    assert found == deployed


def test_the_manifest_has_what_a_setup_needs():
    plain = documents(Setup(), 1)
    assert plain.keys() == {("Service", "engines"), ("Deployment", "engine")}
    pod = plain["Deployment", "engine"]["spec"]["template"]["spec"]
    assert "policy" not in yaml.safe_dump(pod) and "SERVEGYM" not in yaml.safe_dump(pod)
    built_on = re.search(r"VLLM_VERSION=(\S+)", (ROOT / "deploy" / "vllm.Dockerfile").read_text("utf-8"))
    assert built_on is not None and pod["containers"][0]["image"] == f"vllm/vllm-openai:{built_on[1]}"
    assert ("Deployment", "proxy") in documents(Setup(router="min-load"), 2)


def test_flags_of_what_is_not_a_limit():
    assert vllm_flags(replace(Setup(), prefix_caching="off"))[-1] == "--no-enable-prefix-caching"
    assert vllm_flags(Setup(long_prefill_token_threshold=512))[-2:] == ["--long-prefill-token-threshold", "512"]
    assert vllm_flags(Setup("vllm-v1:policy=priority"))[-2:] == ["--scheduling-policy", "priority"]


def test_what_the_files_leave_to_be_done(tmp_path):
    written = export_recommendation(found(Setup(prefill_share=0.5), 4), tmp_path)
    assert "2 of the engines prefill and 2 decode" in written.notes[0]
