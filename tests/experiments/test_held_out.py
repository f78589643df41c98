"""The tables of held-out evaluations, and what is said of bars."""

import pandas as pd
import pytest

from experiments import held_out
from servegym.evaluation.intervals import Interval

TUNED = "slide-batching:eta=0.044"


def runs_of(gained, attained=0.8, waited_s=10.0):
    """Two cells of each load with three seeds; gained: of the policy over the tuned setting's TDG ratio, by load."""
    rows = []
    for load in held_out.ALL_LOADS:
        for trace in ("one", "other"):
            for seed in range(3):
                for policy, more in ((TUNED, 0.0), ("mine", gained[load])):
                    row = {"trace": trace, "device": "d", "load": load, "seed": seed, "policy": policy}
                    noise = 0.001 * seed * (1 + 0.1 * (policy == "mine"))
                    figures = dict.fromkeys(held_out.COLUMNS, attained)
                    figures |= {"tdg_ratio": 0.8 * (1 + more) + noise, "ttft_p99_s": waited_s * (1 + more) + seed}
                    rows.append(row | figures)
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "low, high, verdict", [(0.05, 0.07, held_out.MET), (0.04, 0.06, held_out.OPEN), (0.01, 0.04, held_out.MISSED)]
)
def test_a_bar_is_met_or_missed_by_the_whole_interval(low, high, verdict):
    assert held_out.judged(Interval((low + high) / 2, low, high), 0.05) == verdict


def test_bars_of_gain_are_relative_and_waits_count_the_other_way():
    gained = {0.3: 0.001, 0.7: -0.01, 1.0: 0.02, 1.4: 0.06}
    said = {(words, load): (measured, verdict) for words, load, measured, verdict in held_out.bars(
        runs_of(gained), "mine", TUNED
    )}  # fmt: skip
    gains = {load: verdict for (words, load), (_, verdict) in said.items() if words.startswith("TDG")}
    assert list(gains.values()) == [held_out.MET, held_out.MISSED, held_out.MET, held_out.MISSED]  # 1.4, 1.0, 0.3, 0.7
    assert said["TDG ratio +5.0% or more", "1.4 (overload)"][0].startswith("+6.0%")
    waits = [verdict for (words, _), (_, verdict) in said.items() if words.startswith("TTFT")]
    assert waits == [held_out.MISSED, held_out.MET, held_out.MISSED, held_out.MISSED]  # longer where more is gained
    assert all(verdict == held_out.MET for (words, _), (_, verdict) in said.items() if words.startswith("SLO"))


def test_cells_that_are_worse_are_named():
    found = held_out.worse_cells(runs_of({0.3: 0.0, 0.7: -0.1, 1.0: 0.0, 1.4: 0.0}), "mine", TUNED, "tdg_ratio", 0.01)
    assert [cell.partition(":")[0] for cell in found] == ["one d 0.7", "other d 0.7"]


def test_what_is_printed(tmp_path, capsys):
    runs_of({0.3: 0.001, 0.7: 0.01, 1.0: 0.02, 1.4: 0.06}).to_parquet(tmp_path / held_out.RUNS_FILE)
    held_out.main([str(tmp_path), "mine", "--against", TUNED])
    text = capsys.readouterr().out
    assert f"tuned: `{TUNED}`" in text
    assert "| TDG ratio: tuned | 0.8010 |" in text and "| its difference | -0.0009 ±" in text
    with pytest.raises(SystemExit) as caught:
        held_out.main([str(tmp_path), "yours", "--against", TUNED])
    assert caught.value.code == 2 and "yours is not among" in capsys.readouterr().err
