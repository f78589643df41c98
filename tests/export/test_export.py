"""Exports: what is read of studies, trainings and artifacts, and what each target gets."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from servegym.baselines.artifact import Artifact, load_artifact, save_artifact
from servegym.baselines.registry import router, scheduler
from servegym.errors import ExportError, ServegymError
from servegym.evaluation.assumptions import estimator_of, workload_of
from servegym.evaluation.panels.provenance import TrainedOn
from servegym.evaluation.running import ThreadRunner
from servegym.export.sources import completed, named_artifact, source_artifact
from servegym.export.targets import RAY_ROUTER, TARGETS, VLLM_SCHEDULER, export
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile
from servegym.traces.workloads import build_workload
from servegym.tuners.studies.reading import parse_tuning
from servegym.tuners.studies.tuning import run_tuning, save_tuning

pytest.importorskip("optuna")

TUNING = {
    "description": "Two engines, two trials.",
    "panel": {
        "trace": ["azure-conv"], "device": ["a100-llama3-8b"], "load": [1.2], "requests": 30, "seeds": 1,
        "engines": 2,
    },
    "validation": {"seeds": 2},
    "test": {"trace": ["azure-code"], "seeds": 1},
    "trials": 2,
    "studies": {"both": {"scheduler": "slide-batching", "router": "gorouting"}},
}  # fmt: skip
PROFILE = load_profile("a100-llama3-8b")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Path:
    """The folder of a small tuning, as `servegym tune` leaves it."""
    folder = tmp_path_factory.mktemp("tuned")
    config = parse_tuning(TUNING, "small")
    save_tuning(config, list(run_tuning(config, folder, ThreadRunner(1))), folder)
    return folder


def named(**texts: str) -> Artifact:
    """Policies with an estimator and a workload."""
    return completed(named_artifact(texts), "a100-llama3-8b", "proserve", ["azure-conv"])


def test_the_winner_of_a_study(tuned):
    outcome = json.loads((tuned / "both/outcome.json").read_text())
    for source in (tuned, tuned / "both", tuned / "both/outcome.json"):
        artifact = source_artifact(str(source))
        assert {role: policy.label for role, policy in artifact.policies.items()} == outcome["winner"]["labels"]
    provenance = artifact.provenance
    assert provenance["study"] == "both" and provenance["scores"] == outcome["scores"]
    assert provenance["seeds"] == outcome["seeds"] and provenance["versions"]["optuna"]
    assert TrainedOn.from_json(provenance["trained_on"], "it") == TrainedOn(
        ("azure-conv",), ("a100-llama3-8b",), (1.2,), ((0, 0), (500_000, 500_001))
    )
    assert artifact.estimator == estimator_of(PROFILE)
    workload = artifact.workload
    assert (workload["engines"], workload["prefill"], workload["decode"], workload["loads"]) == (2, 0, 0, [1.2])
    assert (workload["slo"], workload["traces"], workload["tpot_slo_s"]) == ("proserve", ["azure-conv"], 0.05)


def test_an_exported_study_comes_back(tuned, tmp_path):
    artifact = source_artifact(str(tuned))
    path = export(artifact, "servegym", tmp_path / "best.json").files[0]
    assert load_artifact(path) == artifact == source_artifact(str(path))


@pytest.mark.parametrize("change, problem", [
    (lambda document: document.pop("winner"), "'winner' is missing; it should be what servegym tune wrote, whole"),
    (lambda document: document["config"].pop("panel"), "'panel' is missing"),
    (lambda document: document.update(seeds=[]), "it should be what servegym tune wrote"),
    (lambda document: document["winner"].update(policies=3), "it should be what servegym tune wrote"),
    (lambda document: document["winner"]["policies"].update(balancer={}), "there is a policy for 'balancer'"),
    (
        lambda document: document["winner"]["policies"]["router"]["settings"].update(alpha=7),
        "gorouting: alpha=7: should be 0 to 1",
    ),
])  # fmt: skip
def test_an_outcome_that_is_not_whole(tuned, tmp_path, change, problem):
    document = json.loads((tuned / "both/outcome.json").read_text())
    change(document)
    (tmp_path / "outcome.json").write_text(json.dumps(document))
    with pytest.raises(ServegymError, match=problem):
        source_artifact(str(tmp_path))
    (tmp_path / "outcome.json").write_text(json.dumps(document)[:-20])
    with pytest.raises(ExportError, match="it should be what servegym tune wrote, whole"):
        source_artifact(str(tmp_path))


def test_folders_and_files_of_other_kinds(tmp_path):
    with pytest.raises(ExportError, match=r"nothing to export; it should be a folder of servegym tune"):
        source_artifact(str(tmp_path))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ExportError, match=r"notes\.txt: it should be a folder of servegym tune or train"):
        source_artifact(str(tmp_path / "notes.txt"))
    for study in ("a", "b"):
        (tmp_path / study).mkdir()
        (tmp_path / study / "outcome.json").write_text("{}")
    with pytest.raises(ExportError, match=r"has the studies a, b; name one, such as .*/a"):
        source_artifact(str(tmp_path))


def test_a_training_and_a_policy_that_ships(tmp_path):
    pytest.importorskip("safetensors")
    shipped = source_artifact("cma-engine-batching")
    assert shipped.scheduler.label == "learned:cma-engine-batching"
    save_artifact(shipped, tmp_path / "policy.json")
    assert source_artifact(str(tmp_path)).scheduler.weights == shipped.scheduler.weights
    again = export(completed(shipped, "a100-llama3-8b"), "vllm", tmp_path / "again.json").files[0]
    assert load_artifact(again).scheduler.weights == shipped.scheduler.weights
    assert (tmp_path / "again.safetensors").is_file()


def test_what_is_named_was_trained_on_what_its_parts_were():
    pytest.importorskip("safetensors")
    texts = {"scheduler": "learned:cma-engine-batching", "router": "gorouting"}
    seen = TrainedOn.from_json(named_artifact(texts).provenance["trained_on"], "it")
    alone = TrainedOn.from_json(source_artifact("cma-engine-batching").provenance["trained_on"], "it")
    assert set(seen.traces) == set(alone.traces) and seen.seeds == alone.seeds and set(seen.loads) == set(alone.loads)
    nothing = named_artifact({"router": "gorouting"}).provenance["trained_on"]
    assert nothing == {"traces": [], "devices": [], "loads": [], "seeds": []}


def test_the_estimator_is_the_profiles():
    """Form and packed coefficients give the latency model back."""
    estimator = estimator_of(PROFILE)
    model = LatencyModel(estimator["form"], np.array(estimator["coefficients"]))
    assert (
        model.coefficients_by_name == PROFILE.estimator.coefficients_by_name == estimator["fit"]["coefficients_by_name"]
    )
    assert estimator["fit"]["error"]["estimator_vs_device"]["mape_percent"] > 0


@pytest.mark.parametrize("slo, wanted", [
    ("proserve", {"ttft_slo_s": 1.0, "tpot_slo_s": 0.05, "weight_of_priority": {"0": 2.0, "1": 1.0}}),
    ("proserve-32b", {"ttft_slo_s": 2.0, "tpot_slo_s": 0.1, "weight_of_priority": {"0": 2.0, "1": 1.0}}),
    ("polyserve", {"tpot_slo_s": 0.1}),  # that of four requests in ten
])  # fmt: skip
def test_the_workload_is_what_most_requests_get(slo, wanted):
    workload = workload_of(slo, ["azure-conv"])
    assert {name: workload[name] for name in wanted} == wanted
    assert "ttlt_slo_s" not in workload
    table = build_workload("azure-conv", requests=2000, rate_per_s=1.0).table
    ratio = table["prompt_tokens"].mean() / table["output_tokens"].mean()
    assert workload["first_token_weight"] == pytest.approx(ratio, abs=1e-4)


def test_assumptions_can_be_replaced():
    artifact = named(scheduler="edf")
    other = completed(artifact, "h100-llama3-8b", "proserve-32b")
    assert other.workload["traces"] == ["azure-conv"] and other.workload["tpot_slo_s"] == 0.1
    assert other.estimator["profile"] == "h100-llama3-8b"
    assert completed(artifact) == artifact
    bare = named_artifact({"scheduler": "edf"})
    own = completed(completed(bare, slo="ttlt_s=9"), slo="ttft_s=2,tpot_s=0.06").workload
    assert own == {"slo": "ttft_s=2,tpot_s=0.06", "ttft_slo_s": 2.0, "tpot_slo_s": 0.06}
    for arguments, missing in (((None, "proserve"), "--trace NAME"), ((None, None, ["azure-conv"]), "--slo RECIPE")):
        with pytest.raises(ExportError, match=f"say {missing} too"):
            completed(bare, *arguments)


def test_the_script_of_vllm_finds_the_artifact_wherever_it_is(tmp_path):
    folder = tmp_path / "a folder; with $(odd) 'name"
    folder.mkdir()
    exported = export(named(scheduler="slide-batching:gamma=2", router="gorouting"), "vllm", folder / "my policy.json")
    script = exported.files[1]
    assert script.name == "my policy.vllm.sh" and "gorouting is not vLLM's to run" in exported.notes[0]
    fake = tmp_path / "bin/vllm"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$SERVEGYM_POLICY"\nfor word in "$@"; do echo "$word"; done\n')
    fake.chmod(0o755)
    done = subprocess.run(
        ["sh", script, "a model", "--port", "1"], cwd="/", capture_output=True, text=True,
        env={"PATH": f"{fake.parent}:/usr/bin:/bin", "CDPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        str(folder / "my policy.json"), "serve", "a model", "--port", "1", "--async-scheduling",
        "--scheduler-cls", VLLM_SCHEDULER,
    ]  # fmt: skip
    assert load_artifact(folder / "my policy.json").scheduler == scheduler("slide-batching:gamma=2")


def test_a_name_with_a_line_in_it_stays_in_its_comment(tmp_path):
    path = tmp_path / "a\nexit 7\n.json"
    script = export(named(scheduler="edf"), "vllm", path).files[1]
    done = subprocess.run(["/bin/sh", script], capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False)
    assert done.returncode != 7


def test_the_piece_of_a_ray_serve_config(tmp_path):
    exported = export(named(router="gorouting"), "ray", tmp_path / "routes.json")
    document = yaml.safe_load(exported.files[1].read_text())
    config = document["deployments"][0]["request_router_config"]
    assert config["request_router_class"] == RAY_ROUTER
    assert load_artifact(config["request_router_kwargs"]["policy"]).router == router("gorouting")
    schema = pytest.importorskip("ray.serve.schema")
    schema.DeploymentSchema.model_validate(document["deployments"][0])


def test_what_sglang_is_told(tmp_path):
    exported = export(named(scheduler="sarathi-edf:max_num_batched_tokens=512"), "sglang", tmp_path / "edf.json")
    document, script = json.loads(exported.files[0].read_text()), exported.files[1]
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    assert script.read_text().rstrip().endswith(" ".join(document["arguments"]))
    assert document["policies"] == {"scheduler": "sarathi-edf:max_num_batched_tokens=512"}
    assert any("1000 x" in note for note in exported.notes) and "--chunked-prefill-size" in document["arguments"]
    with pytest.raises(ExportError, match="takes a scheduler"):
        export(named(router="gorouting"), "sglang", tmp_path / "routes.json")


def test_classes_that_are_named_are_there():
    """Of modules that need vLLM or Ray only the text is read."""
    root = Path(__file__).parents[2]
    module, name = VLLM_SCHEDULER.removeprefix("servegym.").rsplit(".", 1)
    assert name in (root / module.replace(".", "/") / "__init__.py").read_text()
    module, name = RAY_ROUTER.removeprefix("servegym.").split(":")
    assert re.search(rf"^class {name}\b", (root / f"{module.replace('.', '/')}.py").read_text(), re.MULTILINE)


def test_a_configuration_of_xllm(tmp_path):
    exported = export(
        named(scheduler="slide-batching:gamma=2.5", router="gorouting"), "xllm", tmp_path / "x.json", "0.10"
    )
    document, flags = (json.loads(path.read_text()) for path in exported.files)
    assert flags == document["flags"] and flags["aggressive_coeff"] == 2.5 and flags["use_mix_scheduler"] is True
    assert {"scheduler.eta", "router.alpha", "router.lambda", "router.mu"} <= set(document["no_flag_for"])
    assert document["requests"]["priority 0"]["priority_weight"] == 2
    assert any("router.mu" in note for note in exported.notes)


@pytest.mark.parametrize("target, texts, device, problem", [
    ("vllm", {"router": "gorouting"}, True, "gorouting: vLLM takes a scheduler, and the artifact has none"),
    ("ray", {"scheduler": "edf"}, True, "edf: Ray Serve takes a router, and the artifact has none"),
    ("xllm", {"scheduler": "edf"}, True, "xLLM does not have this scheduler"),
    ("vllm", {"scheduler": "edf"}, False, "it has no estimator of batch times, which vLLM needs"),
    ("ray", {"router": "gorouting"}, False, "it has no estimator of batch times, which Ray Serve needs"),
    ("tgi", {"scheduler": "edf"}, True, "unknown target 'tgi'; there are servegym, vllm, ray, sglang, xllm"),
])  # fmt: skip
def test_a_target_that_does_not_take_it(target, texts, device, problem, tmp_path):
    artifact = named(**texts) if device else named_artifact(texts)
    with pytest.raises(ServegymError, match=problem):
        export(artifact, target, tmp_path / "it.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", TARGETS)
def test_what_cannot_be_written(target, tmp_path):
    taken = "sarathi-fcfs:max_num_batched_tokens=512" if target == "sglang" else "slide-batching"
    artifact = named(scheduler=taken, router="gorouting")
    with pytest.raises(ExportError, match=r"an export is a \.json file"):
        export(artifact, target, tmp_path / "it.txt")
    with pytest.raises(ServegymError, match="cannot be written"):
        export(artifact, target, tmp_path / "no/it.json")
    if target != "xllm":
        with pytest.raises(ExportError, match="a version of xLLM is given, and the target is"):
            export(artifact, target, tmp_path / "it.json", "0.10")
    assert list(tmp_path.iterdir()) == []
