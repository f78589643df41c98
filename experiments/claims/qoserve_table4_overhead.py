"""QoServe, Table 4, on engines whose iterations cost what the paper's Figure 4 says that small chunks lose."""

from collections.abc import Iterator

import pandas as pd

from experiments.claims import qoserve_table4 as table4
from experiments.claims.harness import Cell, Check, Setting, Size, claim

# A chunk of 256 then has 0.72 to 0.73 of the throughput of 2048 (prefill alone, nothing or 1500 tokens cached).
DEVICE = f"{table4.DEVICE}:cpu_overhead_ms=6.5"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    """Those of qoserve-table4, without its chunks of half the speed; batches of QoServe as the paper forms them."""
    for cell in table4.cells(setting, size):
        if cell.router == table4.SHARED:
            yield cell._replace(scheduler="qoserve:steps=ignore")
        elif cell.scheduler != table4.HALF_SPEED:
            yield cell


@claim(
    "qoserve-table4-overhead",
    cells=cells,
    measure=table4.measure,
    families=("qoserve-code",),
    devices=(DEVICE,),
    picture=table4.picture,
    appendix=table4.appendix,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    return [*table4.checks_of_the_table(rows), *table4.how_few_engines(rows)]
