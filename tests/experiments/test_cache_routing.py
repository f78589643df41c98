"""The studies of routers that know what engines cache: what verdicts say, and pages of small runs."""

import pytest

from experiments.cache_routing import __main__ as families_study
from experiments.cache_routing.claims import Claim
from experiments.cache_routing.setups import ROUTERS, Setup
from servegym.evaluation.intervals import Interval

pytestmark = pytest.mark.slow

CLAIMS, FAMILIES = families_study.CLAIMS, families_study.FAMILIES
ONE, OTHER = Setup("chat-sessions", "kv-aware"), Setup("chat-sessions", "min-load")


@pytest.mark.parametrize(
    "expected, bound, interval, verdict",
    [
        ("above", 0.0, (0.1, 0.3), "holds"),
        ("above", 0.0, (-0.1, 0.3), "undecided"),
        ("above", 0.0, (-0.3, -0.1), "fails"),
        ("below", -0.3, (-0.9, -0.4), "holds"),
        ("below", -0.3, (-0.4, -0.2), "undecided"),
        ("below", -0.3, (-0.2, 0.1), "fails"),
        ("within", 0.0, (-0.01, 0.01), "holds"),
        ("within", 0.0, (-0.01, 0.03), "undecided"),
        ("within", 0.0, (0.03, 0.04), "fails"),
        ("within", 0.0, (-0.04, -0.03), "fails"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(expected, bound, interval, verdict):
    claim = Claim(1, ONE, OTHER, "tdg", expected, bound)
    low, high = interval
    assert claim.range.verdict(Interval((low + high) / 2, low, high)) == verdict


def test_a_page_and_its_pictures(tmp_path):
    page = tmp_path / "docs" / "results" / "cache-routing.md"
    families_study.main(
        [str(page), "--families", "agent-sessions", "--seeds", "2", "--first-seed", "3", "--share", "0.04"]
    )
    text = page.read_text()
    for name in ROUTERS:
        assert text.count(f"| `{name}` | yes |") == text.count(f"| `{name}` | no |") == 1
    for memory in ("1", "0.625"):
        for name in families_study.TOLD:
            for goes_by in ("own index", "events"):
                assert text.count(f"| agent-sessions | {memory} | `{name}` | {goes_by} |") == 3
    hypotheses = text.split("## The hypotheses")[1].split("## Reading")[0]
    assert hypotheses.count("| agent-sessions |") == sum(claim.one.family == "agent-sessions" for claim in CLAIMS)
    assert "chat-sessions," not in text.split("Measured by")[1].split("## Reading")[0]
    for name in ("cache-routing.png", "cache-routing-events.png"):
        assert (tmp_path / "docs" / "images" / name).stat().st_size > 1000


def test_claims_are_about_what_is_run():
    for family in FAMILIES:
        setups = families_study.setups_of(family.name)
        of_family = [claim for claim in CLAIMS if claim.one.family == family.name]
        assert of_family and all({claim.one, claim.other} <= set(setups) for claim in of_family)
