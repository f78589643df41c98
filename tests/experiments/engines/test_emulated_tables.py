"""The tables of vLLM on the emulated device."""

import pandas as pd
import pytest

from experiments.engines.emulated_tables import OVERHEAD, main

TIMES = {"ttft_p50_s": 0.2, "ttft_p90_s": 1.25, "tpot_p50_ms": 40.0, "tpot_p90_ms": 50.0}


def line(way: str, tdg: float, seed: int = 0, **more: float) -> dict[str, object]:
    found = {"seed": seed, "scheduler": "edf", "way": way, "tdg": tdg, "slo_attainment": 0.5, "finished": 9}
    return {**found, **TIMES, **more}


def test_virtual_runs_say_which_figures_differ(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line("simulated", 0.9), line("virtual", 0.9), line("simulated", 0.8, 1), line("virtual", 0.8, 1)]
    lines[3]["tpot_p50_ms"] = 40.0000001
    pd.DataFrame(lines).to_csv(tmp_path / "figures.csv", index=False)
    main([str(tmp_path / "figures.csv")])
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "| 0 | 0.9000 = 0.9000 |",
        "| 1 | 0.8000 = 0.8000 (not: tpot_p50_ms) |",
    ]


def test_served_runs_stand_between_the_simulated_ones(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {column: 1.5 for column, _ in OVERHEAD.values()}
    lines = [line("simulated", 0.9), line("served", 0.86, **steps), line("simulated, with the server's overhead", 0.87)]
    pd.DataFrame(lines).to_csv(tmp_path / "figures.csv", index=False)
    pd.DataFrame([line("simulated", 0.7, 5)]).to_csv(tmp_path / "more.csv", index=False)  # of a seed not served
    main([str(tmp_path / "figures.csv"), str(tmp_path / "more.csv")])
    told = capsys.readouterr().out
    assert "| 0 | edf | simulated | 0.900 | 0.500 | 0.200 / 1.250 | 40.0 / 50.0 |" in told
    assert "|  |  | **served** | **0.860** |" in told
    assert "0.700" not in told
    assert "| mean overhead | 1.50 |" in told
