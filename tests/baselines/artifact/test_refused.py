"""Documents and weights that are refused, each in one line."""

import hashlib
import json
import os

import numpy as np
import pytest

from servegym.baselines.artifact import ArtifactError, load_artifact
from servegym.baselines.artifact.files import load_policy, save_policy
from servegym.baselines.learned.ranking import scored
from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from tests.baselines.artifact.artifacts import ESTIMATOR, OF, PROVENANCE, changed, controller

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.mark.parametrize(("changes", "message"), [
    ({"schema": 3}, "written in format 3; this version reads 2"),
    ({"schema": True}, "written in format True; this version reads 2"),
    ({"schema": "2"}, "written in format '2'"),
    ({"schema": 1}, "written in format 1; this version reads 2"),
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
])  # fmt: skip
def test_documents_that_are_refused(changes, message, tmp_path):
    path = save_policy(controller(), tmp_path / "best.json", PROVENANCE)
    changed(path, **changes)
    with pytest.raises(ArtifactError, match=message) as error:
        load_artifact(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 600


def test_wrong_parts_that_are_large_or_deep_are_one_line_too(tmp_path):
    path = save_policy(scheduler("edf"), tmp_path / "best.json", {})
    document = json.loads(path.read_text())
    for traces in (["x"] * 30_000 + [1], json.loads("[" * 500 + "]" * 500), [{"a": "b" * 100_000}]):
        path.write_text(json.dumps(document | {"workload": {"traces": traces}}))
        with pytest.raises(ArtifactError, match=r"workload\.traces") as error:
            load_artifact(path)
        assert len(str(error.value)) < len(str(path)) + 600


@pytest.mark.parametrize(("text", "message"), [
    ("[" * 100_000, "not a JSON document"),
    ('{"schema": ' + "9" * 5000 + "}", "not a JSON document|written in format"),
    ('{"schema": NaN}', "written in format nan"),
    ("[]", "is not of type 'object'"),
    ("null", "None is not of type 'object'"),
    (b"\xff\xfe{}", "not a JSON document"),
    (" " * (2**23 + 1), "more than 8,388,608 bytes"),
])  # fmt: skip
def test_texts_that_are_no_artifact(text, message, tmp_path):
    path = tmp_path / "best.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArtifactError, match=message):
        load_artifact(path)


def test_weights_that_are_no_file_of_the_right_size(tmp_path):
    path = save_policy(controller(), tmp_path / "best.json", PROVENANCE)
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
    path = save_policy(controller(), tmp_path / "best.json", PROVENANCE)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(PolicyError, match="may have been cut off"):
        load_policy(path)


@pytest.mark.parametrize(("change", "message"), [
    ({"layer1.bias": np.array([0.0, np.nan])}, "weight 113 is nan; weights should be finite"),
    ({"layer1.bias": np.array([0.0, np.inf])}, "weight 113 is inf"),
    ({"layer0.weight": np.zeros((25, 4))}, r"layer0.weight has shape \(25, 4\); the network has \(4, 25\)"),
    ({"layer1.bias": None}, r"layer1.bias has shape nothing; the network has \(2,\)"),
    ({"layer1.bias": np.zeros(2, "f4")}, "layer1.bias is of float32; it should be float64"),
    ({"layer2.bias": np.zeros(1)}, r"layer2.bias has shape \(1,\); the network has nothing"),
    ({"layer1.bias": np.array([0.0, 1.0])}, None),
])  # fmt: skip
def test_weights_that_are_refused(change, message, tmp_path):
    path = save_policy(controller(), tmp_path / "best.json", PROVENANCE)
    file = tmp_path / "best.safetensors"
    tensors = {k: v for k, v in (safetensors.load(file.read_bytes()) | change).items() if v is not None}
    data = safetensors.save(tensors)
    file.write_bytes(data)
    changed(path, policies__scheduler__learned__weights__sha256=hashlib.sha256(data).hexdigest())
    if message is None:
        assert load_policy(path).network.layers[1][1].tolist() == [0.0, 1.0]
        return
    with pytest.raises(PolicyError, match=message):
        load_policy(path)


@pytest.mark.parametrize(("save", "message"), [
    (lambda folder: save_policy(controller(), folder / "best.txt", {}), "saved to a .json file"),
    (lambda folder: save_policy(controller(), folder / "no" / "best.json", {}), "cannot be written: No such file"),
    (lambda folder: save_policy(controller(), folder / "best.json", {"x": {1, 2}}), "workload is not JSON"),
    (lambda folder: save_policy(controller(), folder / "best.json", {"x": np.nan}), "workload is not JSON"),
    (lambda folder: save_policy(scored(scheduler("edf"), 3), folder / "best.json", {}), "has no network to save"),
    (
        lambda folder: save_policy(controller().with_settings(gamma=3), folder / "best.json", {}),
        "save it without settings",
    ),
])  # fmt: skip
def test_what_cannot_be_saved(save, message, tmp_path):
    with pytest.raises(PolicyError, match=message):
        save(tmp_path)
    assert list(tmp_path.iterdir()) == []
