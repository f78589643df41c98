"""Artifacts: back as they were, through the command line too, and what of a wrong file is refused."""

import hashlib
import json
import os
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

from servegym.baselines.artifact import Artifact, ArtifactError, load_artifact, save_artifact
from servegym.baselines.artifact.document import SCHEMAS, _validator, parse_document
from servegym.baselines.artifact.entries import entry_of
from servegym.baselines.learned import artifact
from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.ranking import ranked, scored
from servegym.baselines.learned.routing import routed
from servegym.baselines.learned.scaling import choices_of, scaled
from servegym.baselines.learned.scheduling import CONTROLS, scheduled
from servegym.baselines.observations.caching import caching_layout
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.queue import queue_layout
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.observations.scheduling import scheduling_layout
from servegym.baselines.observations.tiers import tiers_layout
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
from servegym.simulator.policies.policy import Fact, Policy, from_json

safetensors = pytest.importorskip("safetensors.numpy")

PROVENANCE = {"trained_on": {"traces": ["azure-conv"], "seeds": [0, 1]}, "steps": 3}
ESTIMATOR = {"profile": "mine", "form": "linear", "coefficients": [1e-9, 0.0, 2.5], "fit": {"mape_percent": 4.5}}
WORKLOAD = {
    "slo": "proserve", "ttft_slo_s": 1.0, "tpot_slo_s": 0.05, "ttlt_slo_s": None, "first_token_weight": 4.2,
    "weight_of_priority": {"1": 2.0, "0": 1.0}, "traces": ["azure-conv"], "devices": ["a100-llama3-8b"],
    "loads": [0.7, 1.4], "requests": 500, "prefill": 2, "decode": 1,
}  # fmt: skip


def random(shape: Shape) -> Network:
    return Network.random(shape, np.random.default_rng(7))


def controller() -> Policy:
    base = scheduler("slide-batching:load=c")
    return controlled(base, ("gamma", "eta"), random(Shape.dense_on(engine_layout(), 2, hidden=(4,), output="tanh")))


POLICIES = {
    "controller": controller,
    "ranking": lambda: ranked(scheduler("edf"), random(Shape.shared_by(queue_layout(5), hidden=(4, 3)))),
    "scheduling": lambda: scheduled(
        scheduler("expected-gain"), random(Shape.shared_by(scheduling_layout(5), CONTROLS + 1, "joint", hidden=(4,)))
    ),
    "routing": lambda: routed(router("min-load"), random(Shape.shared_by(routing_layout(4), activation="relu"))),
    "caching": lambda: routed(router("kv-aware"), random(Shape.shared_by(caching_layout(4))), sees="caching"),
    "scaling": lambda: scaled(scaler("polyserve"), random(Shape.shared_by(tiers_layout(4), choices_of(2)))),
}
HEURISTICS = {
    "heuristic": lambda: scheduler("slide-batching:gamma=2"),
    "other defaults by a word": lambda: scheduler("slide-batching:variant=xllm"),
    "one of them set": lambda: scheduler("slide-batching:variant=xllm,hopeless=include,eta=0.02"),
    "router": lambda: router("random:seed=3"),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_comes_back_as_it_was(kind, tmp_path):
    policy = POLICIES[kind]()
    path = artifact.save(policy, tmp_path / "best.json", PROVENANCE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.json", "best.safetensors"]
    again = artifact.load(path)
    assert again.label == "learned:best" and again.function is policy.function
    assert artifact.load(path, name=policy.name) == policy
    document = json.loads(path.read_text())
    assert document["provenance"] == PROVENANCE
    assert document["policies"][policy.kind]["learned"]["way"] == {"caching": "routing"}.get(kind, kind)
    named = {"scheduler": scheduler, "router": router, "scaler": scaler}[policy.kind](f"learned:{path}")
    assert named == again


@pytest.mark.parametrize("kind", HEURISTICS)
def test_a_heuristic_is_a_file_too(kind, tmp_path):
    policy = HEURISTICS[kind]()
    path = artifact.save(policy, tmp_path / "best.json", {})
    assert [p.name for p in tmp_path.iterdir()] == ["best.json"]
    assert artifact.load(path) == policy


def test_names_and_kinds_in_the_registry(tmp_path):
    path = artifact.save(POLICIES["routing"](), tmp_path / "a,b=c:d.json", {})
    assert router(f"learned:{path}").label == "learned:a,b=c:d"
    with pytest.raises(PolicyError, match=r"d\.json: it has a router; it should have a scheduler"):
        scheduler(f"learned:{path}")
    with pytest.raises(PolicyError, match=r"nowhere\.json: No such file or directory"):
        scheduler("learned:nowhere.json")
    with pytest.raises(PolicyError, match="load the file it was saved to"):
        from_json(router(f"learned:{path}").to_json())


def test_a_document_of_version_1_means_the_defaults_of_its_time():
    shipped = scheduler("learned:cma-engine-batching").base.chosen()
    assert (shipped["hopeless"], shipped["deadlines"]) == ("include", "slo")
    assert shipped["eta"] == Fact("min_tpot_slo_s", 0.65) != scheduler("slide-batching").chosen()["eta"]
    first = {
        "schema": 1, "kind": "heuristic", "controls": [], "observation": None, "network": None, "weights": None,
        "base": {"kind": "scheduler", "name": "slide-batching", "settings": {"gamma": 2.0}}, "provenance": {},
    }  # fmt: skip
    parameters = parse_document(json.dumps(first).encode(), "it")["policies"]["scheduler"]["parameters"]
    assert (parameters["gamma"], parameters["hopeless"]) == (2.0, "exclude")
    first["base"]["settings"]["hopeless"] = "include"
    parameters = parse_document(json.dumps(first).encode(), "it")["policies"]["scheduler"]["parameters"]
    assert (parameters["hopeless"], parameters["eta"]["factor"]) == ("include", 0.65)


def several() -> Artifact:
    policies = {
        "router": router("gorouting:alpha=0.8,mu=0.2"), "decode_scheduler": scheduler("vllm-v1:policy=priority"),
        "scheduler": controller(), "scaler": POLICIES["scaling"](),
    }  # fmt: skip
    return Artifact(policies, ESTIMATOR, WORKLOAD, PROVENANCE)


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
    values = policy.values(lambda name: {"min_tpot_slo_s": 0.1}[name])
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


def changed(path, **changes):
    """The document with some of it replaced; None: taken out. Keys as a__b."""
    document = json.loads(path.read_text())
    for key, value in changes.items():
        *parents, last = key.split("__")
        part = document
        for parent in parents:
            part = part[parent]
        if value is None:
            del part[last]
        else:
            part[last] = value
    path.write_text(json.dumps(document))


OF = "policies__scheduler__"


def test_a_document_from_before_a_parameter_decides_as_then(tmp_path):
    path = artifact.save(controller(), tmp_path / "best.json", PROVENANCE)
    changed(path, **{f"{OF}parameters__step_tokens": None})
    assert load_artifact(path).scheduler.base.chosen()["step_tokens"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 3}, "written in format 3; this version reads 1 and 2"),
        ({"schema": True}, "written in format True; this version reads 1 and 2"),
        ({"schema": "2"}, "written in format '2'"),
        ({"schema": 1}, "is a required property .see artifact-1.schema.json"),
        ({"policies": None}, "'policies' is a required property"),
        ({"policies": {}}, "policies: .* (non-empty|enough properties)"),
        ({"provenance": None}, "'provenance' is a required property"),
        ({"estimator": None}, "'estimator' is a required property"),
        ({"estimator": {"form": "linear"}}, "estimator: '.*' is a required property"),
        ({"estimator": {**ESTIMATOR, "coefficients": [1, float("nan")]}}, r"estimator.coefficients.1. is nan"),
        ({"workload": {"ttft_slo_s": 0}}, "workload.ttft_slo_s: 0 is less than or equal to the minimum"),
        ({"workload": {"tpot_slo": 0.05}}, "'tpot_slo' was unexpected"),
        ({"workload": {"weight_of_priority": {"high": 2}}}, "workload.weight_of_priority: 'high' does not match"),
        ({"provenance": {"seeds": 2**70}}, "provenance.seeds is a whole number of 71 bits"),
        ({f"{OF}learned__network__hidden": None}, "network: 'hidden' is a required property"),
        ({f"{OF}learned__way": "oracle"}, "learned.way: 'oracle' is not one of"),
        ({f"{OF}learned__way": "ranking"}, "scheduler: a ranking that sees engine; it should see queue"),
        ({"surprise": 1}, "'surprise' was unexpected"),
        ({f"{OF}name": "nobody"}, "scheduler: unknown scheduler 'nobody'"),
        ({f"{OF}kind": "router"}, "policies.scheduler.kind: 'scheduler' was expected"),
        ({f"{OF}parameters__gamma": 99}, "scheduler: slide-batching: gamma=99: should be 0.1 to 10"),
        ({f"{OF}parameters__gamma": None}, "slide-batching: parameter gamma is missing; all are written: gamma, eta"),
        ({f"{OF}parameters__gama": 1}, "slide-batching has no parameter gama"),
        ({f"{OF}parameters__gamma": "2"}, "slide-batching: gamma is '2'; it should be a number"),
        ({f"{OF}parameters__gamma": True}, "gamma: True is not of type"),
        ({f"{OF}parameters__gamma": float("inf")}, "gamma is inf; it should be a finite number"),
        ({f"{OF}parameters__load": 1}, "load is 1; it should be one of a, c, p"),
        ({f"{OF}parameters__load": "z"}, "load=z: should be one of a, c, p"),
        ({f"{OF}parameters__max_num_batched_tokens": 1.5}, "max_num_batched_tokens=1.5: should be a whole number"),
        ({f"{OF}parameters__eta__fact": "moon_s"}, "eta is the fact 'moon_s'; it should be a fact of min_tpot_slo_s"),
        ({f"{OF}parameters__gamma": {"fact": "min_tpot_slo_s", "factor": 1}}, "gamma is the fact .* should be a value"),
        ({f"{OF}learned__controls": ["gamma"]}, "the network has 2 outputs; it should have 1"),
        ({f"{OF}learned__controls": ["gamma", "load"]}, "load cannot be controlled"),
        (
            {f"{OF}learned__observation__fields": "0" * 16},
            "made for other engine observations .0000000000000000; this version has",
        ),
        ({f"{OF}learned__network__hidden": [5]}, r"layer0.bias has shape \(4,\); the network has \(5,\)"),
        ({f"{OF}learned__network__hidden": [4, 4]}, r"layer1.bias has shape \(2,\); the network has \(4,\)"),
        ({f"{OF}learned__network__hidden": [65536, 65536]}, "4296[0-9]* weights; there should be 16777216 at most"),
        ({f"{OF}learned__weights__file": "other.safetensors"}, "weights: other.safetensors: No such file or directory"),
        ({f"{OF}learned__weights__file": "../best.safetensors"}, "weights.file: .* does not match"),
        ({f"{OF}learned__weights__file": "best.safetensors\n"}, "is not the name of a file beside the artifact"),
        ({f"{OF}learned__weights__file": "a\x00.safetensors"}, "is not the name of a file beside the artifact"),
        ({f"{OF}learned__weights__sha256": "0" * 64}, "is not the file that was written with it"),
    ],
)  # fmt: skip
def test_documents_that_are_refused(changes, message, tmp_path):
    path = artifact.save(controller(), tmp_path / "best.json", PROVENANCE)
    changed(path, **changes)
    with pytest.raises(ArtifactError, match=message) as error:
        load_artifact(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 600


@pytest.mark.parametrize("version", SCHEMAS)
def test_the_schemas_are_schemas(version):
    jsonschema.Draft202012Validator.check_schema(_validator(version).schema)


def test_wrong_parts_that_are_large_or_deep_are_one_line_too(tmp_path):
    path = artifact.save(scheduler("edf"), tmp_path / "best.json", {})
    document = json.loads(path.read_text())
    for traces in (["x"] * 30_000 + [1], json.loads("[" * 500 + "]" * 500), [{"a": "b" * 100_000}]):
        path.write_text(json.dumps(document | {"workload": {"traces": traces}}))
        with pytest.raises(ArtifactError, match=r"workload\.traces") as error:
            load_artifact(path)
        assert len(str(error.value)) < len(str(path)) + 600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not a JSON document"),
        ('{"schema": ' + "9" * 5000 + "}", "not a JSON document|written in format"),
        ('{"schema": NaN}', "written in format nan"),
        ("[]", "is not of type 'object'"),
        ("null", "None is not of type 'object'"),
        (b"\xff\xfe{}", "not a JSON document"),
        (" " * (2**23 + 1), "more than 8,388,608 bytes"),
    ],
)
def test_texts_that_are_no_artifact(text, message, tmp_path):
    path = tmp_path / "best.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArtifactError, match=message):
        load_artifact(path)


def test_weights_that_are_no_file_of_the_right_size(tmp_path):
    path = artifact.save(controller(), tmp_path / "best.json", PROVENANCE)
    weights = tmp_path / "best.safetensors"
    with weights.open("ab") as stream:
        stream.write(bytes(2**17))
    with pytest.raises(ArtifactError, match=r"has more than the .* bytes that its network takes"):
        load_artifact(path)
    weights.unlink()
    weights.mkdir()
    with pytest.raises(ArtifactError, match=r"best\.safetensors is not a file"):
        load_artifact(path)
    weights.rmdir()
    os.mkfifo(weights)  # to be read, it would never end
    with pytest.raises(ArtifactError, match=r"best\.safetensors is not a file"):
        load_artifact(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("name", ["best.json", "best.safetensors"])
def test_files_that_were_cut_off(name, share, tmp_path):
    path = artifact.save(controller(), tmp_path / "best.json", PROVENANCE)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(PolicyError, match="may have been cut off"):
        artifact.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer1.bias": np.array([0.0, np.nan])}, "weight 113 is nan; weights should be finite"),
        ({"layer1.bias": np.array([0.0, np.inf])}, "weight 113 is inf"),
        ({"layer0.weight": np.zeros((25, 4))}, r"layer0.weight has shape \(25, 4\); the network has \(4, 25\)"),
        ({"layer1.bias": None}, r"layer1.bias has shape nothing; the network has \(2,\)"),
        ({"layer1.bias": np.zeros(2, "f4")}, "layer1.bias is of float32; it should be float64"),
        ({"layer2.bias": np.zeros(1)}, r"layer2.bias has shape \(1,\); the network has nothing"),
        ({"layer1.bias": np.array([0.0, 1.0])}, None),
    ],
)
def test_weights_that_are_refused(change, message, tmp_path):
    path = artifact.save(controller(), tmp_path / "best.json", PROVENANCE)
    file = tmp_path / "best.safetensors"
    tensors = {k: v for k, v in (safetensors.load(file.read_bytes()) | change).items() if v is not None}
    data = safetensors.save(tensors)
    file.write_bytes(data)
    changed(path, policies__scheduler__learned__weights__sha256=hashlib.sha256(data).hexdigest())
    if message is None:
        assert artifact.load(path).network.layers[1][1].tolist() == [0.0, 1.0]
        return
    with pytest.raises(PolicyError, match=message):
        artifact.load(path)


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda folder: artifact.save(controller(), folder / "best.txt", {}), "saved to a .json file"),
        (
            lambda folder: artifact.save(controller(), folder / "no" / "best.json", {}),
            "cannot be written: No such file",
        ),
        (
            lambda folder: artifact.save(controller(), folder / "best.json", {"x": {1, 2}}),
            "workload is not JSON",
        ),
        (
            lambda folder: artifact.save(controller(), folder / "best.json", {"x": np.nan}),
            "workload is not JSON",
        ),
        (lambda folder: artifact.save(scored(scheduler("edf"), 3), folder / "best.json", {}), "no network in it"),
        (
            lambda folder: artifact.save(controller().with_settings(gamma=3), folder / "best.json", {}),
            "save it without settings",
        ),
    ],
)
def test_what_cannot_be_saved(save, message, tmp_path):
    with pytest.raises(PolicyError, match=message):
        save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_line_takes_it_as_any_policy(tmp_path):
    path = artifact.save(controller(), tmp_path / "best.json", PROVENANCE)

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
