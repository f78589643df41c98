"""ProServe's Table 1: which gain functions can be tricked; and that the page says what the run says."""

from pathlib import Path

import pytest

from experiments.gain_tricks import Answer, answers, as_markdown


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], Answer]:
    return {(answer.trick, answer.gain): answer for answer in answers()}


@pytest.mark.parametrize(
    ("trick", "verdicts"),
    [
        (
            "discard",
            {
                "vanilla-slo": "free",
                "weighted-slo": "free",
                "ta-slo": "punished",
                "tdg": "punished",
                "tempo": "punished",
            },
        ),
        (
            "postpone",
            {"vanilla-slo": "free", "weighted-slo": "free", "ta-slo": "free", "tdg": "punished", "tempo": "punished"},
        ),
        ("postponed decoding", {"ta-slo": "rewarded", "tdg": "punished", "tempo": "punished"}),
    ],
)
def test_table_1(found: dict[tuple[str, str], Answer], trick: str, verdicts: dict[str, str]) -> None:
    assert {gain: found[trick, gain].verdict for gain in verdicts} == verdicts


def test_the_gains_by_hand(found: dict[tuple[str, str], Answer]) -> None:
    # Late request: weight 2, first token 10. Its TTFT is missed; under TA-SLO all 99 intervals are in time.
    assert found["discard", "ta-slo"].honest == 2 * 99
    assert found["discard", "tdg"].tricked == 0
    # Slow engine: 199 intervals of 60 ms, all over 50. Held back: every second one is 1 ms, 99 of them.
    assert (found["postponed decoding", "ta-slo"].honest, found["postponed decoding", "ta-slo"].tricked) == (
        10,
        10 + 99,
    )


def test_the_page_shows_the_run(found: dict[tuple[str, str], Answer]) -> None:
    page = Path(__file__).parents[2] / "docs" / "gains.md"
    assert as_markdown(list(found.values())) in page.read_text("utf-8")
