"""How close schedulers come to the clairvoyant bound: a table of shares, one column a load.

python -m experiments.pages.tightness --requests 1000 --load 0.7 --load 1.0 --load 1.4
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.evaluation.bounds.cache import DEFAULT_DIRECTORY, cached_bound
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

LOADS = (0.7, 1.0, 1.4)


def shares(
    trace: str = "azure-conv",
    slo: str = "proserve",
    device: str = "a100-llama3-8b",
    engines: int = 1,
    requests: int = 1000,
    loads: tuple[float, ...] = LOADS,
    seed: int = 0,
    directory: Path = DEFAULT_DIRECTORY,
) -> pd.DataFrame:
    """One row a load and scheduler: gain, tdg_ratio, share of the bound; bound_ratio is the bound over the ideal."""
    spec = ServingSpec().replaced(trace=trace, slo=slo, device=device, engines=engines, requests=requests, seed=seed)
    rows = []
    for load in loads:
        scenario = spec.replaced(load=load, scheduler="edf").build()
        bound = cached_bound(scenario, directory)
        for name in scheduler_names():
            gain = Simulation(dataclasses.replace(scenario, scheduler=scheduler(name))).run().summary["gain"]
            rows.append({
                "load": load, "scheduler": name, "gain": gain, "tdg_ratio": gain / bound.ideal_gain,
                "bound_ratio": bound.ratio, "share_of_bound": bound.share(gain), "solve_s": bound.solve_s,
            })  # fmt: skip
    return pd.DataFrame(rows)


def main(
    trace: str = "azure-conv",
    slo: str = "proserve",
    device: str = "a100-llama3-8b",
    engines: int = 1,
    requests: int = 1000,
    load: Annotated[list[float] | None, typer.Option()] = None,
    seed: int = 0,
    directory: Path = DEFAULT_DIRECTORY,
) -> None:
    """Print the share of the bound that every registered scheduler reaches."""
    table = shares(trace, slo, device, engines, requests, tuple(load or LOADS), seed, directory)
    for at, rows in table.groupby("load"):
        print(f"load {at:g}: bound {rows.bound_ratio.iloc[0]:.4f} of the ideal gain, {rows.solve_s.iloc[0]:.1f} s")
    wide = table.pivot_table(index="scheduler", columns="load", values="share_of_bound")
    print((100 * wide.sort_values(wide.columns[-1], ascending=False)).round(1).to_string())


if __name__ == "__main__":
    typer.run(main)
