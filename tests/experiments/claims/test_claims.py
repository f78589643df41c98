"""Every claim of this project is registered, states what it must before it runs, and runs."""

import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import experiments.claims
from experiments.claims import polyserve_fig7, polyserve_fig8, polyserve_fig9
from experiments.claims.harness import fleets
from experiments.claims.harness.registry import claims, find_claims
from experiments.claims.harness.selection import SHIFT
from experiments.claims.harness.settings import FULL, QUICK
from experiments.claims.harness.study import Study
from servegym.errors import ExperimentError
from tests.experiments.claims.synthetic import TINY

IDS = (
    "proserve-mape", "proserve-fig2", "proserve-fig3", "proserve-fig5-6", "proserve-fig7", "proserve-fig8",
    "proserve-fig10", "proserve-fig11", "proserve-fig12", "proserve-fig13", "proserve-fig14", "proserve-fig15",
    "proserve-fig16-17", "proserve-fig18", "proserve-fig19", "schedulers-table",
    "qoserve-fig4-9", "qoserve-fig5", "qoserve-fig7", "qoserve-fig8", "qoserve-fig10", "qoserve-fig11", "qoserve-fig12",
    "qoserve-fig13", "qoserve-fig14", "qoserve-fig15b", "qoserve-table4", "qoserve-table4-overhead",
    "qoserve-table5", "qoserve-medha",
    "semantic-fig2a", "semantic-fig2b", "semantic-fig2cd", "semantic-table1", "semantic-table1-scripts",
    "polyserve-fig2-4", "polyserve-fig7",
    "flowprefill-fig3-4", "flowprefill-fig9", "flowprefill-fig10", "flowprefill-fig11", "flowprefill-fig12",
    "flowprefill-fig13", "flowprefill-fig14",
    "flowprefill-fig16", "flowprefill-rounds",
)  # fmt: skip
FEW_ENGINES = (2, 3, 4, 5)


def test_registry_is_complete():
    assert set(IDS) <= set(claims())


def test_a_file_holds_one_claim_of_its_name_and_another_its_words():
    folder = Path(experiments.claims.__file__).parent
    modules = {module.name for module in pkgutil.iter_modules(experiments.claims.__path__) if not module.ispkg}
    assert {id.replace("-", "_") for id in claims()} == modules == {path.stem for path in folder.glob("*.md")}


def test_claims_are_in_the_order_of_figures():
    figures = [int(id.split("-")[1][3:]) for id in claims() if re.match(r"proserve-fig\d", id)]
    assert figures == sorted(figures)


def test_seeds_of_the_verdict_are_apart_from_those_one_looks_at():
    seen_by_compare = set(range(100))
    assert not set(FULL.seeds) & (set(QUICK.seeds) | seen_by_compare)


@pytest.mark.parametrize("claim", claims().values(), ids=lambda claim: claim.id)
class TestEach:
    def test_states_its_hypothesis_with_margins_and_what_refutes_it(self, claim):
        assert claim.prose.paper.endswith(".") and claim.prose.figure
        assert re.search(r"\d", claim.prose.hypothesis), "a hypothesis has numbers"
        assert claim.prose.refuted_by.endswith(".")
        assert (claim.picture is None) == (claim.prose.caption == "")

    def test_cells_are_of_the_setting_and_of_all_seeds(self, claim):
        size = claim.sized(TINY)
        setting = size.settings[0]
        cells = list(claim.cells(setting, size))
        assert {cell.device for cell in cells} == {setting.device}
        assert "" not in {cell.family for cell in cells}
        assert not setting.family or {cell.family for cell in cells} == {setting.family}
        others = {seed + SHIFT for seed in size.seeds}  # that choose what is compared
        assert set(size.seeds) <= {cell.seed for cell in cells} <= set(size.seeds) | others

    @pytest.mark.slow
    def test_runs_and_draws(self, claim, tmp_path, monkeypatch):
        # 20 engines and more are not small, nor is a search to within 4 %.
        monkeypatch.setattr(polyserve_fig9, "SIZES", FEW_ENGINES)
        monkeypatch.setattr(polyserve_fig8, "ENGINES", FEW_ENGINES[1])
        monkeypatch.setattr(polyserve_fig8, "SUPPLY", 2 * FEW_ENGINES[1])
        monkeypatch.setattr(polyserve_fig7, "ENGINES", FEW_ENGINES[1])
        monkeypatch.setattr(fleets, "ENGINES", FEW_ENGINES[1])
        monkeypatch.setattr(fleets, "PRECISION", 1.2)
        monkeypatch.setattr(fleets, "ROUGH_PRECISION", 1.3)
        outcome = Study(claim, TINY).run(tmp_path, lambda done, cells: None, jobs=2)
        checks = outcome.settings[0].checks
        assert len({(check.examines, check.name) for check in checks}) == len(checks), "a name says which check"
        assert all(len(check.values) == len(TINY.seeds) for check in checks)
        assert any(not check.examines for check in checks)
        if claim.picture is not None:
            claim.picture(outcome.rows, tmp_path / "picture.png")
            assert (tmp_path / "picture.png").stat().st_size > 1000
        if claim.appendix is not None:
            assert "\n| " in claim.appendix(outcome.rows, tmp_path)


def test_unknown_claim_is_answered_with_those_there_are():
    with pytest.raises(ExperimentError, match=r"unknown claim 'proserve-fig33' \(did you mean 'proserve-fig3'\?\)"):
        find_claims(["proserve-fig33"])


def test_claims_are_found_once_each():
    assert [claim.id for claim in find_claims(["proserve-mape", "proserve-fig3", "proserve-mape"])] == [
        "proserve-mape",
        "proserve-fig3",
    ]


def test_growth_and_correlation_of_counts():
    from experiments.claims.proserve_fig5_6 import correlation, growth

    assert growth(np.zeros(8)) == 1.0
    assert growth(np.array([1, 1, 0, 0, 0, 0, 7, 7])) == 4.0
    assert correlation(np.arange(4.0), 2 * np.arange(4.0)) == pytest.approx(1)
    assert correlation(np.arange(4.0), np.ones(4)) == 0


def test_crossing_load_is_where_edf_is_ahead_for_the_last_time():
    from experiments.claims.proserve_fig3 import LOADS, crossing_load

    sjf = np.zeros((len(LOADS), 3))
    edf = sjf - 0.1
    edf[:3, 0] = 0.1  # crosses half way between the third load and the fourth
    edf[:, 2] = 0.1  # never behind
    crossing = crossing_load(edf, sjf)
    assert crossing[0] == pytest.approx((LOADS[2] + LOADS[3]) / 2)
    assert np.isnan(crossing[1:]).all()


def test_gain_of_quarters_adds_up():
    from experiments.claims.proserve_fig16_17 import gain_of_quarters, last_over_best, urgent_by_phase

    gain = np.cumsum([1, 1, 4, 4, 2, 2, 1, 1])
    assert gain_of_quarters(gain).tolist() == [2, 8, 4, 2]
    assert last_over_best(gain) == 0.25
    assert urgent_by_phase(np.array([1.0, 3.0, 1.0, 3.0]), np.array([1.0, 11.0, 21.0, 31.0]), 10.0) == (1.0, 3.0)


def test_mean_where_nothing_is_marked_is_no_number():
    from experiments.claims.harness.rows import mean_where

    differences = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert mean_where(differences, np.array([True, True])).tolist() == [2.0, 3.0]
    assert np.isnan(mean_where(differences, np.array([False, False]))).all()
