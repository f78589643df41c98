"""What a page says was served is what was served."""

import re
from pathlib import Path

import numpy as np
import pytest

import experiments.claims
from experiments.claims.harness import fleets
from experiments.claims.harness.registry import claims
from experiments.claims.harness.served import facts_of, noting, of_cell
from experiments.claims.harness.settings_table import settings_table
from servegym.simulator.runs.simulation import Simulation
from tests.experiments.claims.synthetic import TINY

pytestmark = pytest.mark.slow

FOLDER = Path(experiments.claims.__path__[0])
OF_DEVICES = ("flowprefill-fig3-4", "polyserve-fig2-4")  # claims that time batches and serve nothing
BEGIN = ("served.py", "study.py")  # may make a simulation: the one that notes, and what only compiles


class Begun(Exception):
    """A simulation is about to run; it is not what is tested here."""


def begun(claim, cell, monkeypatch):
    """The scenario that a cell runs first, and what was noted of it."""
    whole_run = Simulation.run
    fleets._goodput.cache_clear()  # what another test has measured is not measured again
    with monkeypatch.context() as stopped, noting(cell.device) as noted, pytest.raises(Begun) as end:

        def run(self):
            if not noted:  # what finds the saturation rate is a simulation too, and none of the claim's
                return whole_run(self)
            raise Begun(self.scenario)

        stopped.setattr(Simulation, "run", run)
        claim.measure(cell)
    return end.value.args[0], noted


def different(column, scale=1.0):
    finite = column[np.isfinite(column)]
    return ", ".join(f"{value:g}" for value in sorted({float(f"{scale * value:.4g}") for value in finite})) or "-"


SERVING = [claim for id, claim in claims().items() if id not in OF_DEVICES]


@pytest.mark.parametrize("claim", SERVING, ids=lambda claim: claim.id)
def test_settings_that_a_page_prints_are_those_of_the_workload_that_runs(claim, monkeypatch):
    import pandas as pd

    size = claim.sized(TINY)
    cells = {(cell.slo, cell.engines): cell for cell in claim.cells(size.settings[0], size)}
    for cell in list(cells.values())[:3]:
        scenario, noted = begun(claim, cell, monkeypatch)
        table = scenario.workload.table
        text = settings_table(pd.DataFrame([{**cell._asdict(), "served": of_cell(noted)}]))
        printed = [part.strip() for part in text.splitlines()[-1].strip("|").split("|")]
        assert printed[0] == cell.setting.name
        assert printed[1] == str(sum(pool.engines for pool in scenario.deployment.pools))
        assert printed[2] == f"{len(table):g}"
        assert printed[5] == f"{table['prompt_tokens'].mean():.0f} / {table['output_tokens'].mean():.0f}"
        assert printed[6] == different(table["ttft_slo_s"])
        assert printed[7] == different(table["tpot_slo_s"], 1e3)
        assert printed[8] == different(table["ttlt_slo_s"])


def test_claims_begin_their_simulations_where_it_is_noted():
    for path in FOLDER.rglob("*.py"):
        made = re.findall(r"(?<![\w.])Simulation\(", path.read_text("utf-8"))
        assert not made or path.name in BEGIN, f"{path.name} makes a Simulation; it should call served.begin"


def test_table_of_a_cell_with_several_runs_has_spans_and_no_load():
    import pandas as pd

    one = {
        "engines": 1, "requests": 100, "rate_per_s": 2.0, "mean_prompt_tokens": 10.0, "mean_output_tokens": 5.0,
        "ttft_slo_s": [1.0], "tpot_slo_s": [0.05], "ttlt_slo_s": [], "largest_share_of_kv": 0.1,
        "beyond_ttft_when_idle": 0.0,
    }  # fmt: skip
    other = {**one, "engines": 3, "requests": 300, "rate_per_s": 6.0, "ttft_slo_s": [0.5], "mean_prompt_tokens": 30.0}
    rows = pd.DataFrame([{"family": "f", "device": "d", "load": 1.0, "served": of_cell([one, other])}])
    assert (
        settings_table(rows).splitlines()[-1]
        == "| f on d | 1 to 3 | 100 to 300 | - | 2 to 6 | 20 / 5 | 0.5, 1 | 50 | - | 10% | 0% |"
    )


def test_claim_that_simulates_nothing_has_no_row():
    import pandas as pd

    rows = pd.DataFrame([{"family": "f", "device": "d", "load": 1.0, "served": of_cell([])}])
    assert settings_table(rows).splitlines()[-1].startswith("| ---")


def test_facts_of_slos_without_end_are_none():
    from experiments.claims.harness.cells import Cell, scenario

    whole = scenario(Cell("azure-conv", TINY.devices[0], "edf", 0.5, 1, 40))
    facts = facts_of(whole, TINY.devices[0])
    assert facts["ttlt_slo_s"] == [] and facts["ttft_slo_s"] == [1.0]
    assert facts["rate_per_s"] == pytest.approx(40 / whole.workload.table["arrival_s"][-1])
