"""What the studies beyond print compare and say of it."""

import itertools

import numpy as np
import pandas as pd
import pytest

from experiments.beyond_print import independent_routers, tiered_decodes
from experiments.beyond_print.study import COLUMNS, COST, VIOLATIONS, WITH_WAITS, more_than, scenario, served, tables
from experiments.claims.harness.fleets import DEVICE, sample_of
from experiments.claims.harness.settings import Setting
from servegym.scenarios.spec import ServingSpec


def rows(variants, figure) -> pd.DataFrame:
    """Two families, two shares and three seeds; figure: (variant, share, seed) -> the value of every column."""
    cells = itertools.product(("one", "two"), (0.5, 0.7, 0.9), variants, (1, 2, 3))
    return pd.DataFrame([
        {"family": family, "share": share, "variant": name, "seed": seed}
        | dict.fromkeys(WITH_WAITS.values(), figure(name, share, seed) + 0.1 * (family == "two"))
        for family, share, name, seed in cells
    ])  # fmt: skip


def test_fleets_apart_serve_every_request_once():
    whole = ServingSpec().with_overrides({"engines": 4, "requests": 30, "rate_per_s": 20.0}).build()
    fleets = independent_routers.parts(whole, 4)
    assert [part.deployment.engines for part in fleets] == [1] * 4
    arrivals = np.concatenate([part.workload.table["arrival_s"] for part in fleets])
    assert sorted(arrivals) == whole.workload.table["arrival_s"].tolist()
    assert independent_routers.parts(whole, 1)[0].workload.digest == whole.workload.digest


def test_figures_of_fleets_apart_are_those_of_all_requests():
    whole = ServingSpec().with_overrides({"engines": 2, "requests": 31, "rate_per_s": 20.0}).build()
    parts = independent_routers.parts(whole, 2)
    one, other = (served([part]) for part in parts)
    both, sizes = served(parts), [len(part.workload) for part in parts]
    assert sizes == [16, 15]
    for name in COLUMNS.values():
        assert both[name] == pytest.approx((16 * one[name] + 15 * other[name]) / 31)


def test_differences_are_paired_by_family_and_seed():
    found = rows(("a", "b"), lambda name, share, seed: 0.1 * seed + 0.02 * (name == "b") * (share == 0.5))
    more = more_than(found, "b", "a", VIOLATIONS, 0.5)
    assert more.mean == pytest.approx(0.02) and more.half_width < 1e-9
    assert more_than(found, "b", "a", VIOLATIONS, 0.7).mean == pytest.approx(0.0)
    relative = np.mean([[0.02 / (0.1 * seed + shift) for shift in (0, 0.1)] for seed in (1, 2, 3)])
    assert more_than(found, "b", "a", COST, 0.5, relative=True).mean == pytest.approx(relative)


def test_what_is_said_of_the_hypotheses():
    def figure(name, share, seed):
        worse = {independent_routers.FOUR: 0.1, independent_routers.EIGHT: 0.05}
        return 0.3 + worse.get(name, 0.0) + 0.001 * seed

    said = independent_routers.answers(rows(independent_routers.VARIANTS, figure))
    assert [line.split(": ")[-1] for line in said] == ["holds."] * 3


def test_what_is_said_of_prefills_before_tiers():
    level = {
        tiered_decodes.POLYSERVE: 0.3, tiered_decodes.PRINTED_CHUNK: 0.4, tiered_decodes.QOSERVE: 0.305,
        tiered_decodes.BY_DEADLINE: 0.302, tiered_decodes.FCFS: 0.5, tiered_decodes.TOGETHER: 0.8,
    }  # fmt: skip
    said = tiered_decodes.answers(rows(tiered_decodes.VARIANTS, lambda name, share, seed: level[name] + 0.001 * seed))
    assert [line.split(": ")[-1] for line in said] == ["holds."] * 7
    level[tiered_decodes.QOSERVE] = 0.9  # more violations than any other, and dearer
    said = tiered_decodes.answers(rows(tiered_decodes.VARIANTS, lambda name, share, seed: level[name] + 0.001 * seed))
    assert [line.split(": ")[-1] for line in said] == [
        "holds.",
        "fails.",
        "fails.",
        "holds.",
        "fails.",
        "holds.",
        "holds.",
    ]


@pytest.mark.parametrize("name", tiered_decodes.VARIANTS)
def test_engines_and_policies_of_each_variant(name, monkeypatch):
    made = []
    monkeypatch.setattr(tiered_decodes, "served", lambda scenarios: made.extend(scenarios) or {})
    tiered_decodes.serve("azure-conv", tiered_decodes.VARIANTS[name], 0.001, 1)
    (whole,) = made
    pools = whole.deployment.pools if hasattr(whole.deployment, "pools") else (whole.deployment,)
    assert sum(pool.engines for pool in pools) == tiered_decodes.ENGINES
    if name == tiered_decodes.TOGETHER:
        assert whole.scaler is None and whole.router.name == "round-robin" and len(pools) == 1
    else:
        assert (whole.router.name, whole.scaler.name) == ("polyserve", "polyserve")
        assert [pool.role for pool in pools] == ["prefill", "decode"]
        assert pools[1].scheduler.name == "polyserve"


def test_each_tier_can_have_a_decode_engine():
    made = []
    for family in ("uniform-4096-1024", "azure-code"):  # the optimum of azure-code has one decode engine
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tiered_decodes, "served", lambda scenarios: made.extend(scenarios) or {})
            tiered_decodes.serve(family, "polyserve", 0.001, 1)
    assert [[pool.engines for pool in whole.deployment.pools] for whole in made] == [[7, 13], [16, 4]]
    own = sample_of(Setting("azure-code", DEVICE)).table["tpot_slo_s"]
    assert len(np.unique(own)) == tiered_decodes.TIERS


def test_one_fleet_has_waits_and_fleets_apart_do_not():
    whole = ServingSpec().with_overrides({"engines": 2, "requests": 12, "rate_per_s": 20.0}).build()
    assert set(served([whole])) == set(WITH_WAITS.values())
    assert set(served(independent_routers.parts(whole, 2))) == set(COLUMNS.values())


def test_rates_are_shares_of_the_optimum_of_co_located_engines_whatever_serves():
    both = [
        scenario("azure-conv", 4, 0.01, 1, **other)
        for other in ({}, {"prefill": 2, "decode": 2, "scaler": "polyserve"})
    ]
    assert both[0].workload.digest == both[1].workload.digest


def test_a_row_for_each_variant_at_each_rate():
    study = independent_routers.STUDY._replace(variants={"a": 1, "b": 2})
    lines = tables(rows(study.variants, lambda *_: 0.2), study)
    assert len(lines) == 2 + 2 * 2 * 2 and lines[-1] == "| two | 0.7 | b | 0.3000 | 0.3000 | 0.3000 |"
