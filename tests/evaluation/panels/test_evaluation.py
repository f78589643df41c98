"""Evaluations: which runs there are, on which requests, and what is refused."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from servegym.api import simulate
from servegym.baselines.artifact.files import save_policy
from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.registry import scheduler
from servegym.errors import ExperimentError, PolicyError
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.panels.card import model_card
from servegym.evaluation.panels.evaluation import Evaluation, run_evaluation
from servegym.evaluation.panels.panel import SERVED, Panel, parse_panel
from servegym.evaluation.panels.provenance import ProvenanceError, TrainedOn
from servegym.evaluation.panels.tables import cells_table, groups_table

PROVENANCE = {
    "trained_on": {
        "traces": "azure-conv", "devices": "a100-llama3-8b", "loads": [0.3], "seeds": {"first": 0, "last": 9},
    }
}  # fmt: skip
SMALL = Panel(
    "small",
    SERVED.replaced(trace="azure-code", device=("a100-llama3-8b", "h100-llama3-8b"), load=(0.3, 1.2), requests=40),
    seeds=2,
)
TUNED = "slide-batching:gamma=2"
POLICIES = ("edf", TUNED)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return Evaluation(SMALL, POLICIES)


@pytest.fixture(scope="module")
def runs(evaluation, tmp_path_factory) -> pd.DataFrame:
    return run_evaluation(evaluation, tmp_path_factory.mktemp("small"))


@pytest.mark.slow
def test_every_run_once_and_in_order(evaluation, runs):
    assert len(runs) == evaluation.runs == 2 * 2 * 2 * 2
    assert list(runs["policy"].unique()) == list(POLICIES)
    keys = ["trace", "device", "load", "policy", "seed"]
    assert not runs.duplicated(keys).any()
    order = list(dict.fromkeys(zip(runs["device"], runs["load"], strict=True)))
    assert order == [(device, load) for device in SMALL.devices for load in SMALL.loads]


def test_cells_share_no_seed_and_policies_all(runs):
    of_cells = runs.groupby(["device", "load"], sort=False)["seed"].unique()
    assert [sorted(seeds) for seeds in of_cells] == [[1_000_000 + 2 * cell, 1_000_001 + 2 * cell] for cell in range(4)]
    assert set(runs.groupby("seed")["workload"].nunique()) == {1}
    assert runs["workload"].nunique() == 8


def test_a_run_is_what_simulate_says(evaluation, runs):
    run = runs[(runs["device"] == "h100-llama3-8b") & (runs["load"] == 1.2) & (runs["policy"] == POLICIES[1])].iloc[0]
    result = simulate(
        "azure-code", scheduler=POLICIES[1], device="h100-llama3-8b", rate_per_s=run["rate_per_s"], requests=40,
        seed=run["seed"],
    )  # fmt: skip
    assert run["tdg_ratio"] == result.summary["tdg_ratio"]
    assert run["rate_per_s"] == 1.2 * evaluation.parts[1].saturation_rate_per_s


def test_an_interrupt_leaves_what_is_done(evaluation, runs, tmp_path, monkeypatch):
    def stop_in_the_second_part(done, total):
        assert total == 16
        if done == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_evaluation(evaluation, tmp_path, stop_in_the_second_part)
    ran = []
    once = Comparison.run
    monkeypatch.setattr(Comparison, "run", lambda self, cell: ran.append(cell) or once(self, cell))
    seen = []
    pd.testing.assert_frame_equal(run_evaluation(evaluation, tmp_path, lambda done, _: seen.append(done)), runs)
    assert len(ran) == 16 - 11
    assert seen[-1] == 16 and seen == sorted(seen)


@pytest.mark.slow
def test_other_seeds_are_another_evaluation(evaluation, runs, tmp_path):
    run_evaluation(evaluation, tmp_path)
    other = Evaluation(SMALL.replaced({}, first_seed=5_000_000), POLICIES)
    with pytest.raises(ExperimentError, match="holds another comparison"):
        run_evaluation(other, tmp_path)
    assert other.default_directory != evaluation.default_directory


def test_the_baseline_is_the_first_or_the_one_that_is_named(evaluation):
    assert evaluation.baseline_label == "edf"
    for text in ("slide-batching:gamma=2", "slide-batching:gamma=2.0"):  # its label, and as it is named here
        named = Evaluation(SMALL, ("edf", "slide-batching:gamma=2.0"), baseline=text)
        assert named.baseline_label == "slide-batching:gamma=2"
    with pytest.raises(ExperimentError, match="'sjf' is not judged; judged are edf, slide-batching:gamma=2"):
        Evaluation(SMALL, POLICIES, baseline="sjf")


@pytest.mark.parametrize("arguments, error, problem", [
    ((SMALL, ("edf",)), ExperimentError, "name two schedulers or more"),
    ((SMALL, ("edf", "edf")), ExperimentError, "are the same"),
    ((SMALL, ("edf", "eddf")), PolicyError, "unknown scheduler 'eddf'"),
    ((SMALL, ("edf", "sjf"), "policy"), ExperimentError, "kind 'policy'"),
    ((SMALL, ("min-load", "round-robin"), "router"), ExperimentError, "where there are several engines"),
])  # fmt: skip
def test_what_is_no_evaluation(arguments, error, problem):
    with pytest.raises(error, match=problem):
        Evaluation(*arguments)


def test_routers_are_judged_by_their_own_names(tmp_path):
    panel = SMALL.replaced({"device": "a100-llama3-8b", "engines": 2, "scheduler": "edf"})
    evaluation = Evaluation(panel, ("round-robin", "min-load"), "router")
    runs = run_evaluation(evaluation, tmp_path)
    assert list(runs["policy"].unique()) == ["round-robin", "min-load"]
    assert {candidate.scheduler.label for candidate in evaluation.candidates.values()} == {"edf"}
    assert "2 routers" in evaluation.title and "2 engines" in evaluation.title


def test_a_case_that_was_trained_on_is_refused_or_marked(artifact):
    policies = ("edf", f"learned:{artifact}")
    evaluation = Evaluation(SMALL, policies)
    parts = evaluation.parts
    assert evaluation.novelty(TUNED, parts[0], 0.3) == "new trace"
    assert evaluation.novelty(TUNED, parts[1], 0.3) == "new trace and device"
    assert evaluation.novelty("edf", parts[0], 0.3) == ""
    # The seeds of the first load are 999,998 and 999,999, those of the second 1,000,000 and 1,000,001.
    seen = SMALL.replaced({"trace": "azure-conv"}, first_seed=999_998)
    with pytest.raises(
        ProvenanceError, match=r"slide-batching:gamma=2 was trained on azure-conv with seeds of this case, load 0.3"
    ):
        Evaluation(seen, policies)
    allowed = Evaluation(seen, policies, allow_seen=True)
    assert [allowed.novelty(TUNED, allowed.parts[0], load) for load in (0.3, 1.2)] == [
        "seen", "new seeds",
    ]  # fmt: skip


def test_a_policy_that_does_not_say_what_it_was_trained_on(artifact):
    document = json.loads(artifact.read_text())
    artifact.write_text(json.dumps(document | {"provenance": {"steps": 5}}))
    policies = ("edf", f"learned:{artifact}")
    with pytest.raises(ProvenanceError, match="provenance has no trained_on"):
        Evaluation(SMALL, policies)
    allowed = Evaluation(SMALL, policies, allow_seen=True)
    assert allowed.novelty(TUNED, allowed.parts[0], 0.3) == "unknown"


def test_two_files_of_one_name(artifact):
    with pytest.raises(ExperimentError, match="two learned policies are named mine, after their files"):
        Evaluation(SMALL, (f"learned:{artifact}", f"learned:elsewhere/{artifact.name}"))


def test_a_policy_with_a_network(tmp_path):
    """With weights of 0 it is its base: the same runs; and its card tells of the network."""
    pytest.importorskip("safetensors")
    network = Network.zeros(Shape.dense_on(engine_layout(), 2))
    policy = controlled(scheduler("slide-batching"), ("gamma", "eta"), network)
    path = save_policy(policy, tmp_path / "zeros.json", PROVENANCE)
    panel = SMALL.replaced({"device": "a100-llama3-8b", "load": 1.2})
    evaluation = Evaluation(panel, ("slide-batching", f"learned:{path}"))
    assert list(evaluation.candidates) == ["slide-batching", "learned:zeros"]
    runs = run_evaluation(evaluation, tmp_path)
    base, learned = (runs[runs["policy"] == label]["tdg_ratio"].tolist() for label in evaluation.candidates)
    assert base == learned
    card = model_card(evaluation, "learned:zeros", cells_table(evaluation, runs), groups_table(evaluation, runs))
    for words in (
        "scheduler (controller)",
        "parameters it sets: gamma, eta",
        "sees.layout: engine",
        policy.weights.sha256,
    ):
        assert words in card


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs/evaluation.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1], {})
    assert "slide-batching" in capsys.readouterr().out


def test_the_panel_and_the_record_of_the_page_are_read():
    page = (Path(__file__).parents[3] / "docs/evaluation.md").read_text("utf-8")
    document = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, flags=re.DOTALL)[1])
    panel = parse_panel({"name": "page"} | document, "it")
    assert panel.traces == ("servegen-deepseek-r1",) and panel.loads == (1.0, 1.2)
    page = (Path(__file__).parents[3] / "docs/evaluation_reference.md").read_text("utf-8")
    record = json.loads("{" + re.search(r"```json\n(.*?)```", page, flags=re.DOTALL)[1] + "}")["trained_on"]
    assert TrainedOn.from_json(record, "it").seeds == ((0, 999_999),)
