"""Artifacts: back as they were, through the command line too, and what of a wrong file is refused."""

import json
import subprocess
import sys

import jsonschema
import pytest

from servegym.baselines.artifact import Artifact, ArtifactError, load_artifact, save_artifact
from servegym.baselines.artifact.document import schema
from servegym.baselines.artifact.entries import entry_of
from servegym.baselines.artifact.files import load_policy, save_policy
from servegym.baselines.registry import (
    decode_scheduler,
    router,
    router_names,
    scaler,
    scaler_names,
    scheduler,
    scheduler_names,
)
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import Fact, from_json
from tests.baselines.artifact.artifacts import (
    ESTIMATOR,
    HEURISTICS,
    OF,
    POLICIES,
    PROVENANCE,
    WORKLOAD,
    changed,
    controller,
    several,
)

# Of those that are called by what they see.
WAYS = {
    "caching": "routing", "caching with sessions": "routing", "scheduling with sessions": "scheduling",
    "day": "scaling", "roles": "scaling", "refusing": "routing",
}  # fmt: skip


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_comes_back_as_it_was(kind, tmp_path):
    policy = POLICIES[kind]()
    path = save_policy(policy, tmp_path / "best.json", PROVENANCE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.json", "best.safetensors"]
    again = load_policy(path)
    assert again.label == "learned:best" and again.function is policy.function
    assert load_policy(path, name=policy.name) == policy
    document = json.loads(path.read_text())
    assert document["provenance"] == PROVENANCE
    assert document["policies"][policy.kind]["learned"]["way"] == WAYS.get(kind, kind)
    named = {"scheduler": scheduler, "router": router, "scaler": scaler}[policy.kind](f"learned:{path}")
    assert named == again


@pytest.mark.parametrize("kind", HEURISTICS)
def test_a_heuristic_is_a_file_too(kind, tmp_path):
    policy = HEURISTICS[kind]()
    path = save_policy(policy, tmp_path / "best.json", {})
    assert [p.name for p in tmp_path.iterdir()] == ["best.json"]
    assert load_policy(path) == policy


def test_names_and_kinds_in_the_registry(tmp_path):
    path = save_policy(POLICIES["routing"](), tmp_path / "a,b=c:d.json", {})
    assert router(f"learned:{path}").label == "learned:a,b=c:d"
    with pytest.raises(PolicyError, match=r"d\.json: it has a router; it should have a scheduler"):
        scheduler(f"learned:{path}")
    with pytest.raises(PolicyError, match=r"nowhere\.json: No such file or directory"):
        scheduler("learned:nowhere.json")
    with pytest.raises(PolicyError, match="load the file it was saved to"):
        from_json(router(f"learned:{path}").to_json())


def test_a_policy_that_ships_keeps_the_settings_of_its_training():
    shipped = scheduler("learned:cma-engine-batching").base.chosen()
    assert (shipped["hopeless"], shipped["deadlines"]) == ("include", "slo")
    assert shipped["eta"] == Fact("min_tpot_slo_s", 0.65) != scheduler("slide-batching").chosen()["eta"]


def test_policies_that_serve_together(tmp_path):
    path = save_artifact(several(), tmp_path / "all.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "all.json", "all.scaler.safetensors", "all.scheduler.safetensors",
    ]  # fmt: skip
    again = load_artifact(path)
    assert list(again.policies) == ["scheduler", "decode_scheduler", "router", "scaler"]
    assert again.label == "learned:all + vllm-v1:policy=priority + gorouting:alpha=0.8,mu=0.2"
    assert (again.estimator, again.workload, again.provenance) == (ESTIMATOR, WORKLOAD, PROVENANCE)
    assert again.scheduler.weights == several().scheduler.weights and again.scaler.weights == several().scaler.weights
    assert router(f"learned:{path}") == several().router == again.router
    assert scheduler(f"learned:{path}") == again.scheduler
    assert decode_scheduler(f"learned:{path}") == again.decode_scheduler == several().decode_scheduler
    save_artifact(again, tmp_path / "again.json")
    assert (tmp_path / "again.scaler.safetensors").read_bytes() == (tmp_path / "all.scaler.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["scheduler", "router", "scaler"])
def test_every_registered_policy_comes_back(kind, tmp_path):
    names = {"scheduler": scheduler_names, "router": router_names, "scaler": scaler_names}[kind]()
    find = {"scheduler": scheduler, "router": router, "scaler": scaler}[kind]
    for name in names:
        path = save_artifact(Artifact({kind: find(name)}), tmp_path / "one.json")
        assert load_artifact(path).policies == {kind: find(name)}
        written = json.loads(path.read_text())["policies"][kind]["parameters"]
        assert list(written) == [parameter.name for parameter in find(name).parameters]


def test_a_value_outlives_another_default(tmp_path, monkeypatch):
    """What the file says is decided by, whatever a later version has for a default."""
    path = save_artifact(Artifact({"scheduler": scheduler("slide-batching")}), tmp_path / "one.json")
    changed(path, policies__scheduler__parameters__gamma=1.5)
    changed(path, policies__scheduler__parameters__eta__factor=0.5)
    policy = load_artifact(path).scheduler
    values = policy.values(lambda name: {"min_tpot_slo_s": 0.1, "step_tokens": 128}[name])
    assert (policy.label, values["gamma"], values["eta"]) == ("slide-batching:gamma=1.5", 1.5, 0.05)
    save_artifact(Artifact({"scheduler": policy}), tmp_path / "two.json")
    assert load_artifact(tmp_path / "two.json").scheduler == policy


def test_an_artifact_has_policies_of_the_right_kinds():
    with pytest.raises(ArtifactError, match="at least one policy"):
        Artifact({})
    with pytest.raises(ArtifactError, match="no 'balancer'"):
        Artifact({"balancer": router("min-load")})
    with pytest.raises(ArtifactError, match="min-load is a router; the decode_scheduler should be a scheduler"):
        Artifact({"decode_scheduler": router("min-load")})
    with pytest.raises(ArtifactError, match="mu should be below lambda"):
        entry_of(router("gorouting:mu=0.9"), "")


def test_a_document_from_before_a_parameter_decides_as_then(tmp_path):
    path = save_policy(controller(), tmp_path / "best.json", PROVENANCE)
    changed(path, **{f"{OF}parameters__step_tokens": None})
    assert load_artifact(path).scheduler.base.chosen()["step_tokens"] == 0


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.slow
def test_the_command_line_takes_it_as_any_policy(tmp_path):
    path = save_policy(controller(), tmp_path / "best.json", PROVENANCE)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "servegym", *arguments, "--requests", "40", "--load", "1"],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip

    done = run("compare", "--scheduler", "edf", "--scheduler", f"learned:{path}", "--seeds", "1", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "learned:best" in done.stdout
    done = run("simulate", "--scheduler", f"learned:{path}", "--json", "-")
    assert done.returncode == 0 and json.loads(done.stdout)["finished"] == 40, done.stderr
    done = run("simulate", "--scheduler", "learned:nothing.json")
    assert done.returncode == 2 and "Traceback" not in done.stderr and "nothing.json" in done.stderr
