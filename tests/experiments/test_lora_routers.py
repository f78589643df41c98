"""What the page of lora_routers says of its hypotheses."""

import numpy as np

from experiments.lora_routers import (
    BASE,
    FEW,
    HEAVY,
    LATE,
    ONE,
    OURS,
    OWN_ONLY,
    PANEL,
    PLACES,
    PLAIN,
    THREE,
    UNEQUAL,
    WITHOUT,
    answers,
    routers,
    scenarios_of,
    seeds_at,
)


def outcomes(**tdg: float) -> dict[str, np.ndarray]:
    """With these TDG ratios, and attainments .1 below, on three seeds; 0.8 for those that are not named."""
    by_router = dict.fromkeys((OURS, WITHOUT, OWN_ONLY, BASE, ONE, THREE), 0.8)
    by_router |= {globals()[name]: x for name, x in tdg.items()}
    return {router: np.array([[x, x - 0.1]] * 3) for router, x in by_router.items()}


def test_verdicts() -> None:
    found = {
        HEAVY: outcomes(OURS=0.9),
        UNEQUAL: outcomes(OURS=0.9, THREE=0.95),
        LATE: outcomes(OURS=0.9),
        FEW: outcomes(OURS=0.79),
        PLAIN: outcomes(),
    }
    lines = answers(found).splitlines()
    assert len(lines) == 3 * 2 + 3 * 3 + 2
    failed = [line for line in lines if "fails" in line]
    assert [line.split(".")[0] for line in failed] == ["- 3", "- 5"] and UNEQUAL in failed[0] and FEW in failed[1]
    assert all("undecided" not in line for line in lines)


def test_the_cells_of_the_panel_have_its_seeds() -> None:
    cells = [seeds_at(place) for place in list(PLACES)[: len(PANEL.loads)]]
    assert cells == [PANEL.first_seed + k * PANEL.seeds for k in range(len(PANEL.loads))]


def test_every_place_can_be_built() -> None:
    assert {OURS, WITHOUT, OWN_ONLY, BASE, ONE, THREE} < set(routers())
    for place in PLACES:
        (scenario,) = scenarios_of(place, 1, 1)
        assert scenario.workload.table["adapter"].any() == (place != PLAIN)
