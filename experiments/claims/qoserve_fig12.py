"""QoServe, Figure 12: bursts of overload, with a fifth of the requests of low importance."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import BELOW_0, Cell, Check, Range, claim, drawing, values
from experiments.claims.harness.settings import Setting, Size, saturation_per_s
from experiments.claims.harness.violations import CLASSES, sarathi, serve_violations, slo_of

DEVICE = "a100-llama3-8b"
LOW_LOAD_TOKENS = 20_000  # waiting prefill tokens, about 2 s of work: below, alpha is 1 ms a token
SCHEDULERS = {
    "Sarathi-FCFS": sarathi("fcfs", DEVICE),
    "Sarathi-EDF": sarathi("edf", DEVICE),
    "QoServe": f"qoserve:low_load_tokens={LOW_LOAD_TOKENS}",
    "QoServe, a late request goes alone": f"qoserve:low_load_tokens={LOW_LOAD_TOKENS},importance=ignore",
    "QoServe, spared while others are left": f"qoserve:low_load_tokens={LOW_LOAD_TOKENS},importance=spare",
    "QoServe, public code": f"qoserve:low_load_tokens={LOW_LOAD_TOKENS},dynamic_chunking=code,relegation=code",
}
FCFS, EDF, QO, *OTHERS = SCHEDULERS
WAVE_LOADS = (0.7, 1.75)  # the paper's 2 and 5 requests/s are 0.73 and 1.82 of what its Sarathi-EDF serves
MEAN_LOAD = sum(WAVE_LOADS) / 2
PHASE_S, HOURS = 900.0, 2.0  # four low and four high phases in full size
LOW_SHARE = 0.2
COLLAPSE = Range(low=0.5)
FEW, HARDLY_ANY = Range(high=0.15), Range(high=0.01)


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    saturation = saturation_per_s(setting)
    low, high = (load * saturation for load in WAVE_LOADS)
    phase_s = PHASE_S * size.requests / 1000
    wave = f"square-wave:low_per_s={low!r},high_per_s={high!r},phase_s={phase_s!r}"
    requests = round(MEAN_LOAD * saturation * HOURS * 3600 * size.requests / 1000)
    slo = slo_of(setting.device, low_share=LOW_SHARE)
    for seed in size.seeds:
        for scheduler in SCHEDULERS.values():
            yield Cell(*setting, scheduler, MEAN_LOAD, seed, requests, arrivals=wave, slo=slo)


def picture(rows: pd.DataFrame, path: Path) -> None:
    groups = {"": "all", " important": "important", **{f" {name}": name for name in CLASSES}}
    figure, row = drawing.panels(["low and high load in turn"], "", "violations, share", size=(7.2, 2.6))
    for style, name in enumerate((FCFS, EDF, QO)):
        shares = [values(rows, f"violations{group}", scheduler=SCHEDULERS[name]) for group in groups]
        drawing.bars(row[0], shares, name, style, (style - 1) * 0.25, 0.23)
    row[0].set_xticks(range(len(groups)), list(groups.values()))
    drawing.save(figure, row, path)


@claim(
    "qoserve-fig12",
    cells=cells,
    measure=serve_violations,
    families=("qoserve-code",),
    devices=(DEVICE,),
    picture=picture,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    def share(name: str, group: str = "") -> np.ndarray:
        return values(rows, f"violations{group}", scheduler=SCHEDULERS[name])

    checks = []
    for name in (FCFS, EDF):
        checks += [
            Check(f"{name}, all", share(name), COLLAPSE),
            Check(f"{name}, important", share(name, " important"), COLLAPSE),
        ]
    for name in (QO, *OTHERS):
        examines = "" if name == QO else name
        important = share(name, " important")
        checks += [
            Check("QoServe, all", share(name), FEW, examines),
            Check("QoServe, important", important, HARDLY_ANY, examines),
            Check("QoServe, important - unimportant", important - share(name, " unimportant"), BELOW_0, examines),
        ]
    return checks
