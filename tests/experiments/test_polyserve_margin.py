"""What the page of PolyServe's margin says of its hypotheses."""

import itertools

import pandas as pd

from experiments.polyserve_margin import (
    COST,
    SLOS,
    SMALL,
    STYLES,
    VARIANTS,
    VIOLATIONS,
    WITHOUT,
    answers,
    page,
    spec_of,
)


def rows(violations: dict[str, float], cost: float) -> pd.DataFrame:
    """Three seeds; a variant that is not named has half of the violations. cost: of the small margin, others 100."""
    found = []
    for slo, name, seed in itertools.product(SLOS, VARIANTS, (1, 2, 3)):
        row = dict.fromkeys(STYLES, 0.5) | {VIOLATIONS: violations.get(name, 0.5) * (1 + 0.01 * seed)}
        row[COST] = (cost if name == SMALL else 100.0) + seed
        found.append({"slo": slo, "variant": name, "seed": seed} | row)
    return pd.DataFrame(found)


def test_verdicts() -> None:
    said = answers(rows({WITHOUT: 1.0, SMALL: 0.1}, 103.0))
    assert [line.split(": ")[-1] for line in said] == ["holds."] * 2 + ["fails."] * 4 + ["holds."] * 2
    assert "0.100 of the violations" in said[0] and "+0.029" in said[-1]
    assert answers(rows({WITHOUT: 1.0, SMALL: 0.9}, 120.0))[-1].endswith("fails.")


def test_the_page_has_a_row_a_variant_under_each_slo() -> None:
    text = page(rows({}, 100.0), 3, 1000)
    assert all(text.count(f"\n| {name} | ") == len(SLOS) for name in VARIANTS)


def test_a_variant_is_what_its_name_says() -> None:
    for name, variant in VARIANTS.items():
        spec = spec_of(variant, "ttft_s=1", 1, 10)
        assert str(spec.policies.scheduler).endswith(f"margin={variant.margin}") and spec.policies.scaler == "polyserve"
        assert bool(spec.imperfection.correction) == ("corrected" in name)
        form = name.split("`")[1] if "`" in name else "table"
        assert str(spec.fleet.device).endswith(f":estimator={form}")
