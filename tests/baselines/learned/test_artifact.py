"""Policies as files: back as they were, through the command line too, and what of a wrong file is refused."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from servegym.baselines.learned import artifact
from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.ranking import ranked, scored
from servegym.baselines.learned.routing import routed
from servegym.baselines.learned.scaling import choices_of, scaled
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.queue import queue_layout
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.observations.tiers import tiers_layout
from servegym.baselines.registry import router, scaler, scheduler
from servegym.simulator.errors import PolicyError
from servegym.simulator.policies import Policy, from_json

safetensors = pytest.importorskip("safetensors.numpy")

PROVENANCE = {"trained_on": {"traces": ["azure-conv"], "seeds": [0, 1]}, "steps": 3}


def random(shape: Shape) -> Network:
    return Network.random(shape, np.random.default_rng(7))


def controller() -> Policy:
    base = scheduler("slide-batching:load=c")
    return controlled(base, ("gamma", "eta"), random(Shape.dense_on(engine_layout(), 2, hidden=(4,), output="tanh")))


POLICIES = {
    "controller": controller,
    "ranking": lambda: ranked(scheduler("edf"), random(Shape.shared_by(queue_layout(5), hidden=(4, 3)))),
    "routing": lambda: routed(router("min-load"), random(Shape.shared_by(routing_layout(4), activation="relu"))),
    "scaling": lambda: scaled(scaler("polyserve"), random(Shape.shared_by(tiers_layout(4), choices_of(2)))),
}
HEURISTICS = {"heuristic": lambda: scheduler("slide-batching:gamma=2"), "router": lambda: router("random:seed=3")}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_comes_back_as_it_was(kind, tmp_path):
    policy = POLICIES[kind]()
    path = artifact.save(policy, tmp_path / "best.json", PROVENANCE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.json", "best.safetensors"]
    again = artifact.load(path)
    assert again.label == "learned:best" and again.function is policy.function
    assert artifact.load(path, name=policy.name) == policy
    document = json.loads(path.read_text())
    assert document["provenance"] == PROVENANCE and document["kind"] == kind
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
    with pytest.raises(PolicyError, match=r"d\.json: it is a router; it should be a scheduler"):
        scheduler(f"learned:{path}")
    with pytest.raises(PolicyError, match=r"nowhere\.json: No such file or directory"):
        scheduler("learned:nowhere.json")
    with pytest.raises(PolicyError, match="load the file it was saved to"):
        from_json(router(f"learned:{path}").to_json())


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "written in format 2; this version reads 1"),
        ({"base": None}, "'base' is a required property"),
        ({"provenance": None}, "'provenance' is a required property"),
        ({"network__hidden": None}, "network: 'hidden' is a required property"),
        ({"kind": "oracle"}, "kind: 'oracle' is not one of"),
        ({"kind": "ranking"}, "a ranking that sees engine; it should see queue"),
        ({"kind": "heuristic"}, "observation of a heuristic should not be there"),
        ({"surprise": 1}, "'surprise' was unexpected"),
        ({"base__name": "nobody"}, "base: unknown scheduler 'nobody'"),
        ({"base__settings": {"gamma": 99}}, "base: slide-batching: gamma=99: should be 0.1 to 10"),
        ({"base__settings": {"gama": 1}}, "base: slide-batching has no parameter gama"),
        ({"base": {"kind": "router", "name": "min-load", "settings": {}}}, "min-load is a router; the base should be"),
        ({"controls": ["gamma"]}, "the network has 2 outputs; it should have 1"),
        ({"controls": ["gamma", "load"]}, "load cannot be controlled"),
        ({"observation__fields": "0" * 16}, "made for other engine observations .0000000000000000; this version has"),
        ({"network__hidden": [5]}, r"layer0.bias has shape \(4,\); the network has \(5,\)"),
        ({"network__hidden": [4, 4]}, r"layer1.bias has shape \(2,\); the network has \(4,\)"),
        ({"weights__file": "other.safetensors"}, "weights: other.safetensors: No such file or directory"),
        ({"weights__file": "../best.safetensors"}, "weights.file: .* does not match"),
        ({"weights__sha256": "0" * 64}, "is not the file that was written with it"),
    ],
)  # fmt: skip
def test_documents_that_are_refused(changes, message, tmp_path):
    path = artifact.save(controller(), tmp_path / "best.json", PROVENANCE)
    changed(path, **changes)
    with pytest.raises(PolicyError, match=message) as error:
        artifact.load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


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
    changed(path, weights__sha256=hashlib.sha256(data).hexdigest())
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
        (lambda folder: artifact.save(controller(), folder / "best.json", {"x": {1, 2}}), "provenance is not JSON"),
        (lambda folder: artifact.save(controller(), folder / "best.json", {"x": np.nan}), "provenance is not JSON"),
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
