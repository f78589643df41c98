"""The study of routers that know what engines cache: what its verdicts say, and a page of a small run."""

import pytest

from servegym.evaluation.intervals import Interval
from servegym.experiments.cache_routing import CLAIMS, FAMILIES, ROUTERS, Claim, main


@pytest.mark.parametrize(
    "expected, bound, interval, verdict",
    [
        ("above", 0.0, (0.1, 0.3), "holds"),
        ("above", 0.0, (-0.1, 0.3), "?"),
        ("above", 0.0, (-0.3, -0.1), "refuted"),
        ("below", -0.3, (-0.9, -0.4), "holds"),
        ("below", -0.3, (-0.4, -0.2), "?"),
        ("below", -0.3, (-0.2, 0.1), "refuted"),
        ("within", 0.0, (-0.01, 0.01), "holds"),
        ("within", 0.0, (-0.01, 0.03), "?"),
        ("within", 0.0, (0.03, 0.04), "refuted"),
        ("within", 0.0, (-0.04, -0.03), "refuted"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(expected, bound, interval, verdict):
    claim = Claim(1, "chat-sessions", "kv-aware", "min-load", "tdg", expected, bound)
    low, high = interval
    assert claim.verdict(Interval((low + high) / 2, low, high)) == verdict


def test_a_page_and_its_picture(tmp_path):
    page = tmp_path / "docs" / "results" / "cache-routing.md"
    main([str(page), "--families", "agent-sessions", "--seeds", "2", "--first-seed", "3", "--share", "0.04"])
    text = page.read_text()
    for name in ROUTERS:
        assert text.count(f"| `{name}` | yes |") == text.count(f"| `{name}` | no |") == 1
    assert text.count("| agent-sessions |") == sum(claim.family == "agent-sessions" for claim in CLAIMS)
    assert "chat-sessions," not in text.split("Measured by")[1]
    assert (tmp_path / "docs" / "images" / "cache-routing.png").stat().st_size > 1000


def test_claims_are_about_what_is_run():
    names = {family.name for family in FAMILIES}
    assert all(claim.family in names and {claim.one, claim.other} <= set(ROUTERS) for claim in CLAIMS)
