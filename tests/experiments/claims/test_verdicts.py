"""The verdict logic on numbers made up for it."""

import dataclasses
import json
import math

import numpy as np
import pytest

from experiments.claims.harness.checks import (
    ABOVE_0,
    BELOW_0,
    FAILS,
    HOLDS,
    IN_PART,
    UNDECIDED,
    Check,
    Range,
    joined,
    verdict_of,
)
from experiments.claims.harness.outcome import Outcome, SettingOutcome
from experiments.claims.harness.settings import Setting
from servegym.cli.output import plain
from tests.experiments.claims.synthetic import TINY, check, synthetic_claim


@pytest.mark.parametrize(
    ("values", "expected", "verdict"),
    [
        ([0.10, 0.11, 0.12], ABOVE_0, HOLDS),
        ([-0.10, -0.11, -0.12], ABOVE_0, FAILS),
        ([-0.10, -0.11, -0.12], BELOW_0, HOLDS),
        ([-0.5, 0.1, 0.5], ABOVE_0, UNDECIDED),
        ([0.0, 0.0, 0.0], ABOVE_0, FAILS),  # equal is not above
        ([0.01, 0.02, 0.015], Range(-0.05, 0.05), HOLDS),  # within a margin
        ([0.04, 0.06, 0.05], Range(-0.05, 0.05), UNDECIDED),
        ([0.10, 0.11, 0.12], Range(-0.05, 0.05), FAILS),
        ([0.7, math.nan, 0.7], Range(0.1, 1.4), FAILS),  # a seed that has no such number
        ([0.7], ABOVE_0, UNDECIDED),  # one seed says nothing of the next
    ],
)
def test_check_holds_only_when_its_whole_interval_is_in_the_expected_range(values, expected, verdict):
    assert check(values, expected).verdict == verdict


def test_interval_of_a_check_is_students():
    interval = check([1.0, 2.0, 3.0]).interval
    assert interval.mean == 2.0
    assert interval.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


HELD, FAILED, UNKNOWN = check([1.0, 1.1, 0.9]), check([-1.0, -1.1, -0.9]), check([-1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([HELD, HELD], True),
        ([FAILED, FAILED], False),
        ([HELD, FAILED], IN_PART),
        ([HELD, UNKNOWN], IN_PART),
        ([UNKNOWN], False),  # not shown
        ([HELD, check([-1.0, -1.1, -0.9], examines="another way")], True),
        ([FAILED, check([1.0, 1.1, 0.9], examines="another way")], False),
    ],
)
def test_verdict_is_of_the_claims_own_checks(checks, verdict):
    assert verdict_of(checks) is verdict or verdict_of(checks) == verdict


def test_settings_that_differ_make_a_claim_hold_in_part():
    assert joined([True, True]) is True
    assert joined([False, False]) is False
    assert joined([True, False]) == IN_PART
    assert joined([True, IN_PART]) == IN_PART


def outcome() -> Outcome:
    import pandas as pd

    settings = [
        SettingOutcome(Setting("azure-conv", "one"), [HELD, check([-1.0, -1.1, -0.9], examines="another way")]),
        SettingOutcome(Setting("azure-conv", "other"), [FAILED, check([1.0, np.nan, 0.9], examines="another way")]),
    ]
    return Outcome(synthetic_claim(), TINY, settings, pd.DataFrame(), pd.DataFrame())


def test_nothing_shown_and_nothing_refuted_is_told_as_undecided():
    setting = Setting("azure-conv", "one")
    assert SettingOutcome(setting, [UNKNOWN, UNKNOWN]).verdict_words == UNDECIDED
    assert SettingOutcome(setting, [UNKNOWN, FAILED]).verdict_words == "does not hold"
    assert SettingOutcome(setting, [UNKNOWN, HELD]).verdict_words == "holds in part"
    assert SettingOutcome(setting, [HELD]).verdict_words == "holds"


def test_document_has_what_scripts_are_promised():
    document = json.loads(json.dumps(plain(outcome().to_json()), allow_nan=False))
    assert {"claim", "paper", "measured", "interval", "holds", "reason"} <= set(document)
    assert document["holds"] == "in part"
    assert document["holds_by_setting"] == {"azure-conv on one": True, "azure-conv on other": False}
    assert document["measured"]["azure-conv on one"]["difference"] == pytest.approx(1.0)
    low, high = document["interval"]["azure-conv on one"]["difference"]
    assert low < 1.0 < high
    assert document["verdicts"]["azure-conv on other"]["another way: difference"] == FAILS


def test_reason_counts_settings_and_names_what_failed_with_its_numbers():
    reasons = [setting.reason for setting in outcome().settings]
    assert outcome().reason == "difference: 1 of 2. Examined, another way: difference: 0 of 2."
    assert reasons[0].startswith("all 1 checks hold. examined, another way: fails: difference (-1 ± 0.25")
    assert "none in 1 of 3 seeds" in reasons[1]


def test_checks_are_counted_over_settings_without_those_that_only_examine():
    assert outcome().counts == {HOLDS: 1, UNDECIDED: 0, FAILS: 1}
    assert outcome().to_json()["counts"] == outcome().counts


def in_short(*settings: list[Check]) -> str:
    import pandas as pd

    outcomes = [SettingOutcome(Setting("azure-conv", str(k)), checks) for k, checks in enumerate(settings)]
    return Outcome(synthetic_claim(), TINY, outcomes, pd.DataFrame(), pd.DataFrame()).in_short


def test_reason_in_short_is_what_fails_in_most_settings_then_what_is_undecided():
    other = dataclasses.replace(FAILED, name="other")
    assert in_short([FAILED, other], [HELD, other], [UNKNOWN, HELD]) == (
        "other: fails in 2 of 2 settings (mean -1, expected > 0)."
    )
    assert in_short([HELD], [UNKNOWN]) == "difference: undecided in 1 of 2 settings (mean 0, expected > 0)."
    assert in_short([HELD], [HELD]) == "Every check holds."
    missing = check([1.0, np.nan, 0.9])
    assert in_short([missing]) == "difference: fails in 1 of 1 settings (no value, expected > 0)."
