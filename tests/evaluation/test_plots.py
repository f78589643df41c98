"""The picture of a comparison."""

import pandas as pd
import pytest

from servegym.evaluation.plots import plot_comparison

pytestmark = pytest.mark.slow


def summary_of(schedulers: int, loads: list[float], interval: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "scheduler": f"scheduler-{index}",
            "load": load,
            "seeds": 5,
            **{
                f"{name}{suffix}": 0.9 - 0.05 * index + shift
                for name in ("tdg_ratio", "slo_attainment")
                for suffix, shift in (("", 0.0), ("_ci_low", -interval), ("_ci_high", interval))
            },
        }
        for load in loads
        for index in range(schedulers)
    )


@pytest.mark.parametrize("schedulers", [1, 7, 12])
@pytest.mark.parametrize("loads", [[0.3, 0.7, 1.0, 1.4], [0.9]])
@pytest.mark.parametrize("interval", [0.2, float("nan")])
def test_a_picture_of_any_comparison(tmp_path, schedulers, loads, interval):
    path = plot_comparison(summary_of(schedulers, loads, interval), "title", tmp_path / "plot.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert width > height > 600
