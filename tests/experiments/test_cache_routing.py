"""The studies of routers that know what engines cache: what verdicts say, and pages of small runs."""

import pytest

from experiments.cache_routing import __main__ as families_study
from experiments.cache_routing import chat_day
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
    assert all({claim.one, claim.other} <= set(chat_day.SETUPS) for claim in chat_day.CLAIMS)


def test_a_day_of_chat(tmp_path):
    page = tmp_path / "docs" / "results" / "chat-day.md"
    chat_day.main([str(page), "--seeds", "2", "--first-seed", "3", "--share", "0.004"])
    text = page.read_text()
    for name in ROUTERS:
        assert text.count(f"| `{name}` | yes |") == text.count(f"| `{name}` | no |") == 1
    assert (tmp_path / "docs" / "images" / "chat-day.png").stat().st_size > 1000


def test_hours_of_a_day_add_up():
    """Each hour has its requests, and their gains are those of the run."""
    from servegym.scenarios.building import workload_of
    from servegym.simulator.runs.simulation import Simulation

    setup, family = chat_day.cached("kv-aware"), chat_day.DAY._replace(requests=400)
    arrivals = f"industrial-day:duration_s={family.lasting_s:g}"
    spec = chat_day.spec_of(family, setup, arrivals=arrivals)
    scenario = chat_day.limited(spec.build(3, workload=workload_of(spec, 3)), 1.0, family.lasting_s)
    result = Simulation(scenario).run()
    hours = chat_day.by_hour(setup, 3, result, family.lasting_s)
    arrived = sum(hour["rate_per_s"] * family.lasting_s / 24 for hour in hours)
    assert arrived == pytest.approx(result.summary["requests"])
    assert len({hour["hour"] for hour in hours}) == len(hours) > 12 and hours[-1]["hour"] == 23
