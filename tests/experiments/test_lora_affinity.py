"""What the page of lora_affinity says of its hypotheses."""

import numpy as np

from experiments.lora_affinity import (
    BASE,
    CELLS,
    FEW,
    FIGURES,
    MANY,
    ONE,
    SOME,
    SPEC,
    THREE,
    answers,
    figures_of,
    rows_of,
)


def outcomes(**tdg: float) -> dict[str, np.ndarray]:
    """With these TDG ratios on three seeds."""
    seeds = np.array([-0.001, 0.0, 0.001])
    by_router = {BASE: tdg["base"], ONE: tdg["one"], THREE: tdg["three"]}
    return {router: np.stack([value + seeds] + [seeds] * (len(FIGURES) - 1)).T for router, value in by_router.items()}


def test_verdicts():
    few, some, many = (next(cell for cell in CELLS if cell.adapters == adapters) for adapters in (FEW, SOME, MANY))
    found = {
        few: outcomes(base=0.9, one=0.9, three=0.95),
        some: outcomes(base=0.5, one=0.7, three=0.6),
        many: outcomes(base=0.5, one=0.5, three=0.6),
    }
    assert [line.rpartition(": ")[2] for line in answers(found).splitlines()] == [
        "fails.", "holds.", "fails.", "holds.", "holds."
    ]  # fmt: skip
    rows = rows_of(found[some]).splitlines()
    assert len(rows) == 2 + 3 and "+0.200" in rows[3] and rows[2].endswith("|  |")


def test_every_cell_can_be_built_and_serves():
    for cell in CELLS:
        SPEC.replaced(**cell._asdict(), requests=20).build(0)
    tdg, attainment, *_, loads, activations = figures_of(CELLS[0], ONE, 1)
    assert 0.0 < tdg <= 1.0 and 0.0 < attainment <= 1.0
    assert 0 < loads <= activations
