"""A table of many schedulers: means over seeds with intervals, and differences to one of them, paired by seed."""

import pandas as pd

from experiments.claims.harness.rows import values
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row

COLUMNS = (
    "tdg_ratio", "slo_attainment", "slo_attainment_high_priority", "slo_attainment_low_priority", "ttft_p99_s",
)  # fmt: skip


def league(rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """One row a load and scheduler of a setting, for each x of `COLUMNS`: its mean x, half of its 95 % interval
    x_half_width, and of its difference to the reference x_difference, x_difference_half_width. NaN: has no x."""
    lines = []
    for load in rows["load"].unique():
        for scheduler in rows["scheduler"].unique():
            line = {"load": load, "scheduler": scheduler}
            for column in COLUMNS:
                own, other = (values(rows, column, load=load, scheduler=name) for name in (scheduler, reference))
                for name, measured in ((column, own), (f"{column}_difference", own - other)):
                    interval = student_interval(measured)
                    line |= {name: interval.mean, f"{name}_half_width": interval.half_width}
            lines.append(line)
    return pd.DataFrame(lines)


def markdown(table: pd.DataFrame, schedulers: list[str], detailed_load: float) -> str:
    """Of a setting: TDG ratios at all loads, and more at one of them. Bold: better than the reference, italic: worse,
    by more than the interval of the difference."""
    at = {load: of_load.set_index("scheduler") for load, of_load in table.groupby("load")}
    one = at[detailed_load]
    lines = header(
        "scheduler", *(f"TDG ratio, load {load:g}" for load in at),
        f"SLO attainment, load {detailed_load:g}", "of high / low priority", "TTFT p99, s",
    )  # fmt: skip
    for name in schedulers:
        priorities = " / ".join(_share(one.loc[name, f"slo_attainment_{level}_priority"]) for level in ("high", "low"))
        gains = (_marked(of_load.loc[name], "tdg_ratio") for of_load in at.values())
        late = Interval.about(one.loc[name, "ttft_p99_s"], one.loc[name, "ttft_p99_s_half_width"]).text(".2f", ".2g")
        lines.append(row(name, *gains, _marked(one.loc[name], "slo_attainment"), priorities, late))
    return "\n".join(lines)


def _marked(line: pd.Series, column: str) -> str:
    difference, half_width = line[f"{column}_difference"], line[f"{column}_difference_half_width"]
    mark = "**" if difference > half_width else "*" if difference < -half_width else ""
    mean, *interval = Interval.about(line[column], line[f"{column}_half_width"]).text(".3f").split(" ", 1)
    return " ".join([f"{mark}{mean}{mark}", *interval])


def _share(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
