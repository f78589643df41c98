"""The picture of PolyServe's load gradient: what is sampled, and that it is drawn."""

from pathlib import Path

import numpy as np
import pytest

from experiments.pages import load_gradient
from servegym.simulator.inputs.workload import Workload


def test_engines_of_a_tier_the_fullest_first():
    tiers = np.array([[0, 1, 0], [0, -1, -1]])
    requests = np.array([[3, 9, 5], [4, 8, 7]])
    np.testing.assert_array_equal(load_gradient.sorted_loads(tiers, requests, 0), [[5, 4], [3, np.nan]])
    np.testing.assert_array_equal(load_gradient.sorted_loads(tiers, requests, 2), [[np.nan, np.nan]])


def test_the_rate_rises_and_falls():
    wave = load_gradient.wave()
    counts, _ = np.histogram(wave.table["arrival_s"], bins=12, range=(0, load_gradient.WAVE_S))
    assert len(wave) == pytest.approx(120 * 230, rel=0.02)
    expected = [load_gradient.rate_per_s(np.array(10.0 * (place + 0.5))) * 10 for place in range(12)]
    assert counts == pytest.approx(expected, rel=0.1)


def test_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load_gradient, "SAMPLES", 5)
    whole = load_gradient.scenario(Workload(load_gradient.wave().table[:300], "beginning"))
    load_gradient.draw(whole, tmp_path / "gradient.png")
    assert (tmp_path / "gradient.png").stat().st_size > 1000
    with pytest.raises(SystemExit, match="one picture"):
        load_gradient.main([])
