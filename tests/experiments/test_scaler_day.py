"""The study of a scaler's day: which setting is chosen, and that costs are those of the second day."""

import numpy as np
import pytest

from experiments import scaler_day
from experiments.scaler_day import DAY_S, STATIC, Judged, Place, cheaper, chosen, rows_of
from servegym.baselines.artifact.files import save_policy
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.scaling import choices_of, scaled
from servegym.baselines.observations.day import day_layout
from servegym.baselines.registry import scaler
from servegym.simulator.runs.simulation import Simulation


def trained(*settings: tuple[float, float]) -> np.ndarray:
    """Of settings with (attainment, engines in service), on two seeds."""
    return np.array([[[1.0, attainment, 1.0, 0.0, engines]] * 2 for attainment, engines in settings])


@pytest.mark.parametrize(
    ("settings", "value", "reaches"),
    [
        ([(0.98, 2.0), (0.991, 3.0), (0.999, 4.0)], 20, True),
        ([(0.999, 3.0), (0.991, 3.5), (0.98, 2.0)], 10, True),
        ([(0.98, 2.0), (0.985, 3.0), (0.97, 1.0)], 20, False),
    ],
)
def test_the_cheapest_that_attains_enough_is_chosen(settings, value, reaches) -> None:
    assert chosen((10, 20, 30), trained(*settings)) == (value, reaches)


def test_a_row_has_the_difference_on_the_same_seeds() -> None:
    ours, other = (trained((0.99, engines))[0] for engines in (3.0, 3.5))
    place = {"target-utilisation": Judged(24.0, True, other), "forecast": Judged(1.5, False, ours)}
    assert cheaper(place, "forecast", "target-utilisation").mean == -0.5
    assert rows_of(place).splitlines()[-1].startswith("| `forecast` 1.5, below 0.99 | 1.0000 | 0.990 |")
    assert rows_of(place).splitlines()[-1].endswith("| 3.00 | -0.50 |  |")
    assert rows_of(place).splitlines()[-2].endswith("| 3.50 |  | +0.50 |")


@pytest.mark.parametrize("family", [STATIC, "target-utilisation", "forecast"])
def test_engine_seconds_of_the_first_day(family, monkeypatch) -> None:
    """Those of a run that ends there."""
    monkeypatch.setattr(scaler_day, "DAY_S", 20.0)
    value = {STATIC: 3, "target-utilisation": 8, "forecast": 1.0}[family]
    scenario = scaler_day.scenario_of(family, value, Place(1.0), 0)
    first = scaler_day.first_day_engine_s(Simulation(scenario))
    engines = scenario.deployment.engines if family == STATIC else 8
    assert first == engines * 20.0 if family == STATIC else 20.0 < first < engines * 20.0


def test_a_learned_scaler_has_the_number_of_its_base(tmp_path) -> None:
    """Its base looks ahead as far as engines take to start."""
    base = scaler("forecast:day_s=1440,engine_rate=2")
    shape = Shape.shared_by(day_layout(8), choices_of(1), hidden=())
    path = save_policy(scaled(base, Network.zeros(shape), sees="day"), tmp_path / "one.json", {"training": "mine"})
    scenario = scaler_day.scenario_of(f"learned:{path}", 2.5, Place(10.0), 0)
    chosen_numbers = scenario.scaler.chosen()
    assert (chosen_numbers["engine_rate"], chosen_numbers["ahead_s"], chosen_numbers["day_s"]) == (2.5, 10.0, 1440.0)
    assert scaler_day.named(f"learned:{path}") == "learned, `mine`" and scaler_day.named(STATIC) == "`static`"


def test_what_becomes_of_the_first_day() -> None:
    workload = scaler_day.scenario_of(STATIC, 4, Place(1.0), 0).workload
    arrival_s = workload.table["arrival_s"]
    today, yesterday = (arrival_s >= DAY_S).sum(), (arrival_s < DAY_S).sum()
    for change, left in ((scaler_day.fewer_yesterday, 0.5), (scaler_day.later_yesterday, 1.0)):
        changed = change(workload).table["arrival_s"]
        assert (changed >= DAY_S).sum() == today
        assert (changed < DAY_S).sum() == pytest.approx(left * yesterday, abs=1)
