"""How far of the way to the best found schedulers come."""

import numpy as np
import pandas as pd
import pytest

from experiments import halfway
from servegym.errors import ExperimentError
from servegym.evaluation.scoring.cases import best_found


def rows(seeds):
    scores = {"tuned": 0.5, "mine": 0.6, "best found": 0.9}
    return pd.DataFrame(
        {
            "trace": "t",
            "device": "d",
            "load": load,
            "seed": seed,
            "policy": name,
            "tdg_ratio": ratio + more * (name == "mine"),
        }
        for load, more in ((0.7, 0.0), (1.4, 0.2))
        for seed in range(seeds)
        for name, ratio in scores.items()
    )


def test_the_way_is_that_of_means():
    assert halfway.share_of_way(np.array([[0.6]]), np.array([[0.5]]), np.array([[0.9]])) == pytest.approx(0.25)
    text = halfway.ways(rows(2), "tuned")
    assert "| `mine` | 0.6000: 25 % (25 to 25) | 0.8000: 75 % (75 to 75) | 0.7000: 50 % (50 to 50) |" in text
    assert "| `tuned` | 0.5000 | 0.5000 | 0.5000 |" in text
    assert "0.6000: 25 % |" in halfway.ways(rows(1), "tuned")  # of one seed no interval


def test_rows_of_a_headroom_and_of_an_evaluation(tmp_path, capsys):
    bound = rows(1).assign(policy="bound")
    pd.concat([rows(1), bound]).to_csv(tmp_path / "headroom.csv", index=False)
    halfway.main([str(tmp_path / "headroom.csv"), "tuned"])
    assert "bound" not in capsys.readouterr().out
    digest, ratio = next(iter(best_found().items()))
    runs = pd.DataFrame(
        {"trace": "t", "device": "d", "load": 1.0, "seed": 0, "policy": name, "workload": digest, "tdg_ratio": 0.3}
        for name in ("tuned", "mine")
    )
    runs.to_parquet(tmp_path / "runs.parquet")
    found = halfway.rows_of(tmp_path / "runs.parquet")
    assert found[found["policy"] == "best found"]["tdg_ratio"].tolist() == [ratio]
    runs.assign(workload="unknown").to_parquet(tmp_path / "others.parquet")
    with pytest.raises(ExperimentError, match="no best run is known of 1 scenarios"):
        halfway.rows_of(tmp_path / "others.parquet")
    with pytest.raises(SystemExit) as caught:
        halfway.main([str(tmp_path / "headroom.csv"), "yours"])
    assert caught.value.code == 2 and "yours is not among tuned, mine" in capsys.readouterr().err
