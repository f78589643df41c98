"""The study of transfer: what is chosen without a group, and what it is judged on."""

import pytest

from experiments import transfer
from experiments.transfer import DEFAULT, TUNED_SEED, Cell, Group, Run, Study
from servegym.baselines.registry import scheduler
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

pytestmark = pytest.mark.slow

AXES = {"device": ("a", "b"), "trace": ("t", "u"), "slo": ("s",), "load": (1.0,)}


@pytest.fixture
def study(tmp_path):
    return Study(AXES, 3, 10, 2, tmp_path / "ledger.jsonl")


def test_a_group_has_no_say_in_what_is_chosen_for_it(study):
    """Setting 1 is best on device a by far, setting 2 on b by a little."""
    scored = {("a", 1): 0.9, ("b", 2): 0.6}
    study.rows = {
        Run(i, cell, TUNED_SEED): {"tdg_ratio": scored.get((cell.device, i), 0.5), "slo_attainment": i / 10}
        for cell in study.cells
        for i in range(3)
    }
    assert study.best() == 1
    assert study.best(Group("device", "a")) == 2
    assert study.best(Group("device", "b")) == 1
    for weight, chosen in ((0.0, [1, 2]), (10.0, [2, 2])):
        assert [study.own(Cell(device, "t", "s", 1.0), weight) for device in "ab"] == chosen


def test_it_is_judged_on_what_was_left_out_with_other_seeds(study, monkeypatch):
    scored = {("a", 1): 0.9, ("b", 2): 0.6}
    study.rows = {
        Run(i, cell, TUNED_SEED): {"tdg_ratio": scored.get((cell.device, i), 0.5), "slo_attainment": i / 10}
        for cell in study.cells
        for i in range(3)
    }
    asked = []
    monkeypatch.setattr(study, "run", lambda runs, title: asked.extend(runs))
    study.test()
    assert TUNED_SEED not in {run.seed for run in asked}
    assert {run.setting for run in asked if run.cell.device == "a"} == {DEFAULT, 1, 2}
    study.rows |= {run: {"tdg_ratio": run.setting / 10} for run in asked}
    left_out = study.scores([Group("device", "a")], "tdg_ratio")
    assert left_out.shape == (2, 2) and (left_out == 0.2).all()
    assert study.less([Group("device", "a")], "tdg_ratio", study.best()).mean == pytest.approx(0.1)
    assert study.own_less("tdg_ratio", DEFAULT).mean == pytest.approx(0.15), "1 on device a, 2 on device b"


def test_the_first_setting_is_the_defaults():
    spec = ServingSpec().replaced(trace="azure-conv", load=1.4, requests=60)
    scenario = spec.build(3)
    text = transfer.settings(4)[DEFAULT].text(float(scenario.workload.table["tpot_slo_s"].min()))
    mine = spec.with_values({"scheduler": text}).build(3)
    shipped = spec.with_values({"scheduler": "expected-gain:steps=ignore"}).build(3)
    assert Simulation(mine).run().summary["gain"] == Simulation(shipped).run().summary["gain"]


def test_settings_are_all_different_and_all_allowed():
    found = transfer.settings(32)
    assert len(set(found)) == 32
    for one in found:
        scheduler(one.text(0.05))
    assert {one.deadlines for one in found} == set(transfer.DEADLINES)


def test_a_page(tmp_path):
    page = tmp_path / "results" / "transfer.md"
    small = ["--settings", "2", "--requests", "20", "--seeds", "2", "--ledger", str(tmp_path / "ledger.jsonl")]
    small += ["--device", "a100-llama3-8b", "h100-llama3-8b", "--trace", "azure-conv", "sharegpt", "--slo", "proserve"]
    transfer.main([str(page), *small])
    text = page.read_text()
    turns = ("each device in turn", "each trace in turn", "each deployment by itself")
    for group in ("device a100-llama3-8b", "trace sharegpt", *turns):
        assert text.count(f"| {group} |") == 1
    assert "2 settings on 8 cells" in text and "slo proserve |" not in text
    kept = (tmp_path / "ledger.jsonl").read_bytes()
    transfer.main([str(page), *small])
    assert (tmp_path / "ledger.jsonl").read_bytes() == kept and page.read_text() == text


def test_a_cell_is_of_its_groups():
    cell = Cell("a", "t", "s", 1.0)
    assert Group("device", "a").has(cell) and not Group("trace", "u").has(cell)
