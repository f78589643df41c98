"""`servegym evaluate ARTIFACT`: which policies it is held against, on how many engines."""

import json

import pytest

from servegym.baselines.artifact import Artifact, save_artifact
from servegym.baselines.registry import router, scheduler

pytestmark = pytest.mark.slow

NOTHING = {"traces": [], "devices": [], "loads": [], "seeds": []}
CASES = ("--trace", "azure-code", "--device", "a100-llama3-8b", "--load", "1.2", "--seeds", "2", "--requests", "40")


@pytest.fixture
def files(tmp_path):
    """tuned.json: a scheduler and a router, for two engines. alone.json: a scheduler."""
    both = {"scheduler": scheduler("slide-batching:gamma=3"), "router": router("gorouting:alpha=0.7")}
    provenance = {"trained_on": NOTHING}
    save_artifact(Artifact(both, workload={"engines": 2}, provenance=provenance), tmp_path / "tuned.json")
    save_artifact(
        Artifact({"scheduler": scheduler("edf:max_num_batched_tokens=256")}, provenance=provenance),
        tmp_path / "alone.json",
    )
    return tmp_path


def evaluated(servegym, *arguments):
    done = servegym("evaluate", *arguments, *CASES, "--out", "out", "--fresh", "--json", "-")
    assert done.status == 0, done.stderr
    return json.loads(done.stdout)


def test_an_artifact_against_its_policies_as_they_come(servegym, files):
    document = evaluated(servegym, "tuned.json")
    assert list(document["evaluation"]["policies"]) == ["slide-batching + gorouting", "tuned"]
    assert document["baseline"] == "slide-batching + gorouting" and document["runs"] == 4
    assert document["evaluation"]["panel"]["engines"] == 2
    assert document["evaluation"]["panel"]["name"] == "held_out_routers-changed"
    assert (files / "out/model_card.md").read_text().startswith("# tuned")


def test_reference_sets_that_are_named(servegym, files):
    arguments = ("tuned.json", "--router", "min-load", "--router", "random", "--engines", "3", "--baseline", "tuned")
    document = evaluated(servegym, *arguments)
    assert list(document["evaluation"]["policies"]) == ["slide-batching + min-load", "slide-batching + random", "tuned"]
    assert document["baseline"] == "tuned" and document["evaluation"]["panel"]["engines"] == 3


def test_policies_of_a_kind_that_no_artifact_has_serve_with_all(servegym, files):
    document = evaluated(servegym, "alone.json", "--router", "min-load", "--engines", "2")
    assert list(document["evaluation"]["policies"]) == ["edf", "alone"]
    assert {roles["router"]["name"] for roles in document["evaluation"]["policies"].values()} == {"min-load"}
    assert evaluated(servegym, "alone.json")["evaluation"]["panel"]["engines"] == 1


def test_one_that_ships(servegym, files):
    pytest.importorskip("safetensors")
    document = evaluated(servegym, "cma-engine-batching", "alone.json")
    assert list(document["evaluation"]["policies"]) == ["slide-batching", "edf", "cma-engine-batching", "alone"]


@pytest.mark.parametrize("arguments, problem", [
    (("nowhere.json",), "nowhere.json: No such file or directory"),
    (("nowhere",), "unknown learned policy 'nowhere'"),
    (("tuned.json", "--engines", "1"), "judged where there are several engines"),
    (
        ("alone.json", "--router", "min-load", "--router", "random"),
        "several routers are named, and no artifact has one",
    ),
    (("tuned.json", "--scheduler", "eddf"), "unknown scheduler 'eddf'"),
    (("tuned.json", "tuned.json"), "two learned policies are named tuned"),
    (("tuned.json", "--baseline", "edf"), "baseline 'edf' is not judged"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, files, arguments, problem):
    assert problem in servegym("evaluate", *arguments, *CASES, "--out", "out").refusal
    assert not (files / "out").exists()
