"""Policies that are judged together: how they are named, what they are held against, and that each is run as it is."""

import json

import pytest

from servegym.baselines.artifact import Artifact, save_artifact
from servegym.baselines.registry import router, scheduler
from servegym.errors import ExperimentError, SpecError
from servegym.evaluation.panels.card import model_card
from servegym.evaluation.panels.evaluation import Evaluation, run_evaluation
from servegym.evaluation.panels.panel import SERVED, Panel
from servegym.evaluation.panels.provenance import ProvenanceError
from servegym.evaluation.panels.sets import SET, artifact_of, find_set, reference_sets
from servegym.evaluation.panels.tables import cells_table, groups_table
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

NOTHING = {"traces": [], "devices": [], "loads": [], "seeds": []}
PANEL = Panel("pair", SERVED.replaced(trace="azure-code", load=1.2, requests=40, engines=2, router="min-load"), seeds=2)
OTHERS = {"scheduler": "edf", "router": "min-load", "scaler": None}


@pytest.fixture
def tuned(tmp_path) -> str:
    policies = {"scheduler": scheduler("slide-batching:gamma=3"), "router": router("gorouting:alpha=0.7")}
    path = save_artifact(Artifact(policies, provenance={"trained_on": NOTHING}), tmp_path / "tuned.json")
    return f"learned:{path}"


def test_a_set_is_an_artifact_or_policies_by_what_they_are_for(tuned):
    label, candidate = find_set(tuned, OTHERS)
    assert (label, candidate.scheduler.label, candidate.router.label) == (
        "tuned", "slide-batching:gamma=3", "gorouting:alpha=0.7",
    )  # fmt: skip
    label, candidate = find_set("router random:seed=2 + decode_scheduler sjf", OTHERS)
    assert label == "random:seed=2 + sjf"
    assert {role: policy.label for role, policy in candidate.roles.items()} == {
        "scheduler": "edf", "router": "random:seed=2", "decode_scheduler": "sjf",
    }  # fmt: skip
    for text in ("edf", "balancer edf", "scheduler edf + scheduler sjf", "scheduler "):
        with pytest.raises(ExperimentError, match=r"it should be one of scheduler, .*, scaler, once"):
            find_set(text, OTHERS)


def test_reference_sets_are_the_same_policies_as_they_come(tuned):
    artifact = artifact_of(tuned)[1]
    assert reference_sets([artifact, artifact], {}) == ["scheduler slide-batching + router gorouting"]
    named = {"scheduler": ["edf", "sjf"], "router": []}
    assert reference_sets([artifact], named) == ["scheduler edf + router gorouting", "scheduler sjf + router gorouting"]
    alone = Artifact({"scheduler": scheduler("edf:max_num_batched_tokens=256")})
    assert reference_sets([artifact, alone], {}) == ["scheduler slide-batching + router gorouting", "scheduler edf"]
    learned = artifact_of("learned:cma-engine-batching")[1]
    assert reference_sets([learned], {}) == ["scheduler slide-batching"]


def test_each_set_serves_as_it_is(tuned, tmp_path):
    evaluation = Evaluation(PANEL, ("scheduler slide-batching + router gorouting", tuned), SET)
    assert list(evaluation.candidates) == ["slide-batching + gorouting", "tuned"]
    assert evaluation.baseline_label == "slide-batching + gorouting"
    assert "2 sets of policies on panel pair" in evaluation.title
    runs = run_evaluation(evaluation, tmp_path / "out")
    part = evaluation.parts[0]
    for label, seed in (("slide-batching + gorouting", 1_000_000), ("tuned", 1_000_001)):
        candidate = evaluation.candidates[label]
        scenario = Scenario(part.workloads[1.2, seed], part.deployment, candidate.scheduler, router=candidate.router)
        row = runs[(runs["policy"] == label) & (runs["seed"] == seed)].iloc[0]
        assert row["tdg_ratio"] == Simulation(scenario).run().summary["tdg_ratio"]
    card = model_card(evaluation, "tuned", cells_table(evaluation, runs), groups_table(evaluation, runs))
    for words in ("- scheduler: settings.gamma: 3", "- router: settings.alpha: 0.7", "Nothing: it was named"):
        assert words in card


def test_decode_engines_get_their_own_scheduler(tmp_path):
    panel = PANEL.replaced({"prefill": 1, "decode": 1})
    artifact = Artifact({"decode_scheduler": scheduler("edf:batch_size=2")}, provenance={"trained_on": NOTHING})
    path = save_artifact(artifact, tmp_path / "decodes.json")
    evaluation = Evaluation(panel, ("decode_scheduler edf", f"learned:{path}"), SET)
    part = evaluation.parts[0]
    pools = [part.deployment_of(candidate).pools for candidate in evaluation.candidates.values()]
    assert [[pool.scheduler and pool.scheduler.label for pool in both] for both in pools] == [
        [None, "edf"], [None, "edf:batch_size=2"],
    ]  # fmt: skip
    runs = run_evaluation(evaluation, tmp_path / "out")
    means = runs.groupby("policy")["tdg_ratio"].mean()
    assert means["edf"] != means["decodes"]
    with pytest.raises(SpecError, match="is the scheduler of decode engines, and there are none"):
        Evaluation(PANEL, ("decode_scheduler edf", f"learned:{path}"), SET)


def test_the_runs_of_another_file_of_that_name_are_not_taken(tuned, tmp_path):
    texts = ("scheduler slide-batching + router gorouting", tuned)
    run_evaluation(Evaluation(PANEL, texts, SET), tmp_path / "out")
    path = artifact_of(tuned)[0]
    document = json.loads(path.read_text())
    document["policies"]["scheduler"]["parameters"]["gamma"] = 1.5
    path.write_text(json.dumps(document))
    with pytest.raises(ExperimentError, match="entrants"):
        run_evaluation(Evaluation(PANEL, texts, SET), tmp_path / "out")


def test_what_is_refused(tuned, tmp_path):
    texts = ("scheduler slide-batching + router gorouting", tuned)
    with pytest.raises(ExperimentError, match="judged where there are several engines"):
        Evaluation(PANEL.replaced({"engines": 1}), texts, SET)
    with pytest.raises(ExperimentError, match="have the same name"):
        Evaluation(PANEL, (texts[0], texts[0]), SET)
    path = artifact_of(tuned)[0]
    seen = {"traces": ["azure-code"], "devices": [], "loads": [], "seeds": {"first": 0, "last": 2_000_000}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"provenance": {"trained_on": seen}}))
    with pytest.raises(ProvenanceError, match="tuned was trained on azure-code"):
        Evaluation(PANEL, texts, SET)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"provenance": {}}))
    with pytest.raises(ProvenanceError, match="provenance has no trained_on"):
        Evaluation(PANEL, texts, SET)
