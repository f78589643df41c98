"""Claims about routers: cells of clusters, first tokens, and verdicts on rows made up for them."""

import numpy as np
import pandas as pd
import pytest

from experiments.claims import proserve_fig11, proserve_fig12, proserve_fig19
from experiments.claims.harness.cells import Cell, scenario, serving, simulation
from experiments.claims.harness.checks import FAILS, HOLDS, UNDECIDED
from experiments.claims.harness.clusters import BASELINES, GOROUTING, HIGH, LIGHT, MIN_LOAD, first_tokens
from experiments.claims.harness.registry import claims
from experiments.claims.harness.settings import FULL, Setting, saturation_per_s
from servegym.errors import SpecError
from tests.experiments.claims.synthetic import DEVICE, TINY

pytestmark = pytest.mark.slow

SETTING = Setting("azure-conv", DEVICE)
CELL = Cell(*SETTING, "sarathi-fcfs", 1.2, 3, 90, engines="prefill=2,decode=1", router="gorouting")
GRIDS = {"proserve-fig11": proserve_fig11.GRID, "proserve-fig12": proserve_fig12.GRID}


def test_engines_of_a_cell():
    assert [serving(DEVICE, text).fleet.total for text in ("", "engines=4", "prefill=2,decode=1")] == [1, 4, 3]
    assert serving(DEVICE, "prefill=2,decode=1").fleet.prefill == 2
    with pytest.raises(SpecError, match="unknown field of a spec 'engine'"):
        serving(DEVICE, "engine=4")


def test_load_of_a_cell_is_relative_to_its_engines():
    def rate_per_s(engines: str) -> float:
        arrival_s = scenario(CELL._replace(engines=engines)).workload.table["arrival_s"]
        return len(arrival_s) / float(arrival_s[-1])

    for engines, total in {"engines=3": 3, "prefill=2,decode=1": 3}.items():
        expected = saturation_per_s(SETTING, total) / saturation_per_s(SETTING)
        assert rate_per_s(engines) / rate_per_s("") == pytest.approx(expected)


def test_router_of_a_cell_is_asked():
    runs = {router: simulation(CELL._replace(router=router)) for router in ("round-robin", "")}
    engines = {router: run.run().requests["engine"].tolist() for router, run in runs.items()}
    assert engines["round-robin"] == engines[""]  # what a scenario without one does
    co_located = CELL._replace(engines="engines=3", load=3.0)
    routed = [simulation(co_located._replace(router=r)).run().requests["engine"].tolist() for r in ("gorouting", "")]
    assert routed[0] != routed[1]


def test_exact_estimator_of_all_pools():
    pools = scenario(CELL._replace(exact_estimator=True)).deployment.pools
    assert len(pools) == 2 and all(pool.device is pool.estimator for pool in pools)


def test_first_tokens_are_those_of_the_runs_table():
    result = simulation(CELL._replace(load=2.0)).run()
    measured, requests = first_tokens(result), result.requests
    early = (requests["first_token_s"] - requests["arrival_s"]) < requests["ttft_slo_s"]
    assert 0 < early.sum() < len(early)
    gained = sum(weight for weight, was in zip(requests["weight"], early, strict=True) if was)
    assert measured["first_token_tdg_ratio"] == pytest.approx(gained / requests["weight"].sum())
    decodes = sum(requests["output_tokens"][early] - 1)
    in_time = sum(requests["on_time_tokens"][early] - 1)
    assert measured["decodes_in_time_after_early_first"] == pytest.approx(in_time / decodes)


def rows_of(claim: str, share_of) -> pd.DataFrame:
    """The claim's own cells, with share_of(cell) and a little noise by seed as every figure."""
    columns = ("tdg_ratio", "first_token_tdg_ratio", "slo_attainment", "deadline_attainment",
               "decodes_in_time_after_early_first")  # fmt: skip
    one = claims()[claim]
    setting = one.sized(TINY).settings[0]
    cells = dict.fromkeys(one.cells(setting, TINY))
    return pd.DataFrame(
        {**cell._asdict(), **dict.fromkeys(columns, share_of(cell) + 0.001 * (cell.seed % 3))} for cell in cells
    )


def verdicts(claim: str, share_of, words: str) -> set[str]:
    """Of the claim's own checks with such a name."""
    checks = claims()[claim].judge(rows_of(claim, share_of))
    found = {check.verdict for check in checks if not check.examines and words in check.name}
    assert found, f"no check of {words}"
    return found


def is_routed(cell: Cell) -> bool:
    """By GoRouting as the paper has it, in whatever order its estimate follows."""
    return cell.router.partition(":local_order=")[0] == GOROUTING


@pytest.mark.parametrize("claim", GRIDS)
class TestRouting:
    @pytest.mark.parametrize(("adds", "verdict"), [(0.1, HOLDS), (0.0, FAILS), (-0.1, FAILS)])
    def test_gorouting_has_to_add_at_high_load_with_every_scheduler(self, claim, adds, verdict):
        def share(cell):
            return 0.5 + adds * (is_routed(cell) and cell.load in HIGH)

        assert verdicts(claim, share, "gorouting - min-load") == {verdict}
        assert verdicts(claim, share, "load 0.3") == {HOLDS}

    def test_one_scheduler_with_which_it_does_not_add_fails_alone(self, claim):
        def share(cell):
            return 0.5 + (-0.1 if cell.scheduler == "weighted-vtc" else 0.1) * is_routed(cell)

        checks = claims()[claim].judge(rows_of(claim, share))
        failed = [check.name for check in checks if not check.examines and check.verdict == FAILS]
        assert [name for name in failed if "gorouting - min-load" in name] == [
            "weighted-vtc: gorouting - min-load, load 1 and 1.4"
        ]

    @pytest.mark.parametrize(("loses", "verdict"), [(0.001, HOLDS), (0.02, FAILS)])
    def test_one_percent_may_be_lost_at_light_load(self, claim, loses, verdict):
        def share(cell):
            return 0.5 - loses * (is_routed(cell) and cell.load == LIGHT)

        assert verdicts(claim, share, "load 0.3") == {verdict}

    @pytest.mark.parametrize(("scheduler_adds", "verdict"), [(0.2, HOLDS), (0.05, FAILS)])
    def test_slide_batching_has_to_add_more_than_the_router(self, claim, scheduler_adds, verdict):
        def share(cell):
            return 0.5 + scheduler_adds * cell.scheduler.startswith("slide") + 0.1 * is_routed(cell)

        assert verdicts(claim, share, "SlideBatching + min-load less") == {verdict}

    def test_what_examines_does_not_count(self, claim):
        def share(cell):
            examined = cell.exact_estimator or not (is_routed(cell) or cell.router == MIN_LOAD)
            return 0.9 if examined else 0.5 + 0.1 * is_routed(cell)

        assert verdicts(claim, share, "gorouting - min-load") == {HOLDS}

    def test_misses_are_told_of_every_scheduler_and_load(self, claim, tmp_path):
        rows = rows_of(claim, lambda cell: 0.5 + 0.1 * is_routed(cell))
        lines = [line for line in GRIDS[claim].appendix(rows, tmp_path).splitlines() if line.startswith("| azure")]
        assert len(lines) == 1 + len(HIGH)
        assert all(line.count("0.499 / **0.399**") == 1 + len(BASELINES) for line in lines)


def test_every_setting_of_the_disaggregated_claim_has_its_engines():
    claim = claims()["proserve-fig11"]
    for setting in claim.sized(FULL).settings:
        assert serving(setting.device, proserve_fig11.engines(setting)).fleet.total == 8
        (slide,) = {cell.scheduler for cell in claim.cells(setting, TINY) if cell.scheduler.startswith("slide")}
        assert slide == "slide-batching:load=p"


def test_the_estimate_follows_the_local_scheduler():
    """Where prefills do not run by deadline, GoRouting and its variants know the order; co-located there is none."""
    orders = {}
    for id in GRIDS:
        claim = claims()[id]
        for cell in claim.cells(claim.sized(TINY).settings[0], TINY):
            if cell.router.startswith(GOROUTING):
                orders.setdefault((id, cell.scheduler), set()).add(cell.router.partition("local_order=")[2])
    examined = {"deadline"}
    assert orders.pop(("proserve-fig11", "slide-batching:load=p")) == {"slide-batching"} | examined
    assert orders.pop(("proserve-fig11", "sarathi-priority")) == {"priority"} | examined
    assert all(found == ({""} | examined if "11" in id else {""}) for (id, _), found in orders.items())
    assert len(orders) == 10


DAY = "proserve-fig19"


def ahead(by: float, of_min_load: float, quiet: float = 0.0):
    """Ours by so much ahead of baselines, and of SlideBatching under Min-Load; on the quiet day by something else."""

    def share(cell):
        if cell.scheduler != "slide-batching":
            return 0.5
        ours = cell.router == GOROUTING
        return 0.5 + (quiet * ours if cell.load < 0.5 else by - (0 if ours else of_min_load))

    return share


@pytest.mark.parametrize(
    ("share", "baselines", "min_load", "quiet"),
    [
        (ahead(0.2, 0.1), HOLDS, HOLDS, HOLDS),
        (ahead(0.2, -0.1), HOLDS, FAILS, HOLDS),
        (ahead(-0.1, 0.1), FAILS, HOLDS, HOLDS),
        (ahead(0.2, 0.1, quiet=-0.1), HOLDS, HOLDS, FAILS),
    ],
)
def test_day_has_three_baselines(share, baselines, min_load, quiet):
    assert verdicts(DAY, share, "best baseline") == {baselines}
    assert verdicts(DAY, share, "lead over SlideBatching + min-load") == {min_load}
    assert verdicts(DAY, share, "best of the others") == {quiet}


def test_day_is_lost_to_a_baseline_that_is_best_in_any_seed():
    def share(cell):  # of three seeds each of two baselines is far ahead in one
        lucky = {1: "vllm-fcfs", 2: "fairbatching"}.get(cell.seed)
        return 0.9 if cell.scheduler == lucky else ahead(0.2, 0.1)(cell)

    assert verdicts(DAY, share, "best baseline") == {UNDECIDED}


def test_day_by_half_hours_adds_up_to_the_run():
    claim = claims()[DAY]
    cell = next(iter(claim.cells(claim.sized(TINY).settings[0], TINY)))
    measured = proserve_fig19.serve_day(cell)
    assert [len(measured[f"{name}_by_half_hour"]) for name in ("requests", "gain", "ideal")] == [48] * 3
    assert sum(measured["requests_by_half_hour"]) == measured["requests"] == cell.requests
    assert sum(measured["gain_by_half_hour"]) == pytest.approx(measured["gain"])
    assert sum(measured["ideal_by_half_hour"]) == pytest.approx(measured["ideal_gain"])
    by_hour = np.add.reduceat(measured["requests_by_half_hour"], range(0, 48, 2))
    assert by_hour[10] > 2 * by_hour[3] and by_hour[10] > by_hour[13] < by_hour[15]  # two peaks and a night


def test_every_candidate_of_the_day_is_there():
    assert len(proserve_fig19.OTHERS) == 11 and proserve_fig19.OURS not in proserve_fig19.OTHERS
    assert ("slide-batching", MIN_LOAD) in proserve_fig19.OTHERS
