"""QoServe's claims about clusters: the search for the fewest engines, the mixes, and silos apart and together."""

import dataclasses

import numpy as np
import pytest

from experiments.claims import qoserve_fig15b as needed
from experiments.claims import qoserve_table4 as table4
from experiments.claims import qoserve_table4_overhead as overhead
from experiments.claims.harness import goodput as search
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.settings import Setting, _prefill_s, profile
from experiments.claims.harness.violations import CLASSES, slo_of
from servegym.baselines.registry import router, scheduler
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.experiments.claims.synthetic import TINY

DEVICE = needed.DEVICE
CONV, CODE = Setting("qoserve-conv", DEVICE), Setting("qoserve-code", DEVICE)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 40])
@pytest.mark.parametrize("first", [1, 2, 7, 30])
def test_the_fewest_are_found_from_any_guess(limit, first):
    tried = []

    def is_enough(engines: int) -> bool:
        tried.append(engines)
        return engines >= limit

    assert needed.fewest(is_enough, first) == limit
    assert len(set(tried)) == len(tried) <= 12


def mixed(share: float, requests: int = 40) -> Workload:
    return needed.mix(Cell(*CONV, "medha", 1.0, 1, requests), share)


def test_a_mix_has_its_share_and_all_are_interactive():
    tight = {share: mixed(share, 1000).table["tpot_slo_s"] == 0.05 for share in needed.SHARES}
    assert not tight[0.0].any() and tight[1.0].all()
    assert tight[0.25].mean() == pytest.approx(0.25, abs=0.01)
    assert (tight[0.25] <= tight[0.75]).all()
    table = mixed(0.5).table
    assert np.isinf(table["ttlt_slo_s"]).all() and set(table["ttft_slo_s"]) == {6.0}
    assert set(table["tpot_slo_s"]) == {0.05, 0.1}
    assert len(table) / table["arrival_s"][-1] == pytest.approx(needed.RATE_PER_S, rel=0.1)


def test_silos_apart_are_the_silos_of_one_cluster():
    """Router silo, pools with the scheduler of their class: requests end when they do in a cluster of their class."""
    workload, sizes = mixed(0.5), (3, 4)
    pools = tuple(
        dataclasses.replace(profile(DEVICE).deployment(engines), scheduler=scheduler(f"medha:tbt_s={tbt_s}"))
        for engines, tbt_s in zip(sizes, needed.TBT_S, strict=True)
    )
    whole = Simulation(Scenario(workload, Cluster(pools), scheduler("medha"), router=router("silo")))
    together_s = whole.run().arrays.outcomes["finish_s"]
    for engines, tbt_s in zip(sizes, needed.TBT_S, strict=True):
        mine = workload.table["tpot_slo_s"] == tbt_s
        silo = Scenario(Workload(workload.table[mine]), profile(DEVICE).deployment(engines), scheduler("medha"))
        np.testing.assert_array_equal(Simulation(silo).run().arrays.outcomes["finish_s"], together_s[mine])


def test_no_class_may_violate_more():
    """Ten requests that nothing could serve in time: less than 1 % of all, and more than 1 % of their class."""
    workload = mixed(0.25)
    tight = workload.table["tpot_slo_s"] == 0.05
    hopeless = np.flatnonzero(tight)[:10]
    assert len(hopeless) / tight.sum() > search.MOST_VIOLATIONS > len(hopeless) / len(workload)
    ttft_slo_s = np.where(np.isin(np.arange(len(workload)), hopeless), 1e-6, 6.0)
    plenty = Scenario(
        workload.replace(ttft_slo_s=ttft_slo_s), profile(DEVICE).deployment(40), scheduler("qoserve")
    )  # fmt: skip
    assert search.serves(plenty, np.ones((1, len(workload)), bool))
    assert not search.serves(plenty, np.array([tight, ~tight]))
    assert search.serves(plenty, np.array([~tight]))


def table4_cell(scheduler: str, engines: int, router: str) -> Cell:
    load, slo = 0.9, slo_of(DEVICE)
    return Cell(*CODE, scheduler, load, 1, 1500, slo=slo, engines=f"engines={engines}", router=router)


def test_every_class_has_the_engines_of_its_split():
    cell = table4_cell(table4.SMALL_CHUNK, 13, table4.SILO)
    deployment = Cluster(table4.silo(cell, (7, 3, 3)))
    whole = dataclasses.replace(table4.scenario_of(cell), deployment=deployment)
    arrays = Simulation(whole).run().arrays
    application = whole.workload.table["application"]
    for name, (first, last) in zip(CLASSES, ((0, 7), (7, 10), (10, 13)), strict=True):
        assert set(arrays.requests["engine"][application == CLASSES[name]]) == set(range(first, last))


def test_half_speed_is_the_interactive_silo_alone():
    cell = table4_cell(table4.HALF_SPEED, 13, table4.SILO)
    alone, together = (
        table4.measure(cell),
        table4.served(dataclasses.replace(table4.scenario_of(cell), deployment=Cluster(table4.silo(cell, (7, 3, 3))))),
    )
    name = table4.name_of((7, 3, 3))
    for column in ("violations interactive", "p99_s interactive"):
        assert alone[f"{column} {name}"] == together[column]
    assert alone[f"p99_s TTLT 600 s {name}"] is None and together["p99_s TTLT 600 s"] > 0


def test_percentiles_are_of_the_first_token_or_of_the_last():
    whole = table4.scenario_of(table4_cell("qoserve", 10, table4.SHARED))
    run = Simulation(whole)
    result = run.run()
    found, requests = table4.latencies(run.arrays, whole.workload), result.requests
    for name, application in CLASSES.items():
        column = "ttft_s" if name == "interactive" else "ttlt_s"
        latency_s = np.sort(requests[column][whole.workload.table["application"] == application])
        assert found[f"p99_s {name}"] == pytest.approx(latency_s[int(np.ceil(0.99 * (len(latency_s) - 1)))])


def test_with_an_overhead_small_chunks_have_28_percent_less_throughput():
    chunks = np.array([256, 2048])
    for cached in (0.0, 1500.0):
        small, large = chunks / _prefill_s(overhead.DEVICE, chunks, np.full(2, cached))
        assert small / large == pytest.approx(0.72, abs=0.015)


def test_cells_with_an_overhead_are_those_of_the_table_without_chunks_of_half_the_speed():
    size = dataclasses.replace(TINY, families=("qoserve-code",), devices=(overhead.DEVICE,))
    found = list(overhead.cells(Setting("qoserve-code", overhead.DEVICE), size))
    table = list(table4.cells(Setting("qoserve-code", overhead.DEVICE), size))
    assert {cell.scheduler for cell in found if cell.router == table4.SHARED} == {"qoserve:steps=ignore"}
    kept = [cell for cell in table if cell.scheduler != table4.HALF_SPEED]
    assert [cell._replace(scheduler="") for cell in found] == [cell._replace(scheduler="") for cell in kept]
    assert len(found) < len(table)
    silos = [cell.scheduler for cell in found if cell.router == table4.SILO]
    assert silos == [cell.scheduler for cell in kept if cell.router == table4.SILO]
