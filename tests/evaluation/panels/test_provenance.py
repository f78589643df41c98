"""What a policy was trained on decides what is new to it."""

from pathlib import Path

import pytest

from servegym.evaluation.panels.provenance import (
    NEW_DEVICE,
    NEW_SEEDS,
    NEW_TRACE,
    NEW_TRACE_AND_DEVICE,
    SEEN,
    ProvenanceError,
    TrainedOn,
    artifact_path,
    trained_on,
)  # fmt: skip

DOCUMENT = {
    "traces": ["azure-conv", "data/mine.csv"], "devices": ["a100-llama3-8b"], "loads": {"low": 0.3, "high": 1.6},
    "seeds": [{"first": 0, "last": 99}, 7000],
}  # fmt: skip
TRAINED = TrainedOn.from_json(DOCUMENT, "policy.json")


@pytest.mark.parametrize("trace, device, seeds, new", [
    ("azure-conv", "a100-llama3-8b", range(99, 104), SEEN),
    ("azure-conv", "h100-llama3-8b", range(95, 100), SEEN),  # the requests are, whatever the device
    ("azure-conv", "a100-llama3-8b", range(100, 105), NEW_SEEDS),
    ("azure-conv", "a100-llama3-8b", [6999, 7000], SEEN),
    ("azure-conv", "h100-llama3-8b", range(1_000_000, 1_000_005), NEW_DEVICE),
    ("azure-code", "a100-llama3-8b", range(5), NEW_TRACE),
    ("azure-code", "h100-llama3-8b", range(5), NEW_TRACE_AND_DEVICE),
    ("elsewhere/mine.csv", "h100-llama3-8b", range(1_000_000, 1_000_005), SEEN),  # windows of a file overlap
])  # fmt: skip
def test_what_is_new(trace, device, seeds, new):
    assert TRAINED.novelty(trace, [device], seeds) == new


def test_a_fleet_is_new_with_any_new_device():
    assert TRAINED.novelty("azure-code", ["a100-llama3-8b", "h100-llama3-8b"], range(5)) == NEW_TRACE_AND_DEVICE


def test_what_is_read():
    assert TRAINED.loads == (0.3, 1.6)
    assert TRAINED.seeds == ((0, 99), (7000, 7000))
    alone = TrainedOn.from_json({**DOCUMENT, "traces": "azure-conv", "seeds": {"first": 3, "last": 4}, "loads": 1}, "x")
    assert (alone.traces, alone.seeds, alone.loads) == (("azure-conv",), ((3, 4),), (1.0,))


@pytest.mark.parametrize("change, problem", [
    ({"seeds": "all"}, "should have names of traces"),
    ({"seeds": {"low": 0, "high": 1}}, "should have names of traces"),
    ({"seeds": 0.5}, "should have names of traces"),
    ({"loads": ["light"]}, "should have names of traces"),
    ({"seeds": None}, "should have names of traces"),
])  # fmt: skip
def test_nonsense_is_refused(change, problem):
    with pytest.raises(ProvenanceError, match=f"policy.json: trained_on {problem}"):
        TrainedOn.from_json(DOCUMENT | change, "policy.json")


def test_what_is_missing_is_named():
    with pytest.raises(ProvenanceError, match=r"policy.json: trained_on has no seeds"):
        TrainedOn.from_json({key: value for key, value in DOCUMENT.items() if key != "seeds"}, "policy.json")
    with pytest.raises(ProvenanceError, match="it should have traces"):
        TrainedOn.from_json(["azure-conv"], "policy.json")


def test_only_learned_policies_have_an_artifact():
    assert artifact_path("learned:runs/a:b.json") == Path("runs/a:b.json")
    assert artifact_path("slide-batching:gamma=2") is None


def test_a_file_may_not_say():
    path = Path("policy.json")
    assert trained_on({"trained_on": DOCUMENT, "steps": 5}, path) == TRAINED
    assert trained_on({"steps": 5}, path) is None
