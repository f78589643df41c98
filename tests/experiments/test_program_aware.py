"""What the page of program-aware scheduling says of its hypotheses."""

import itertools

import pandas as pd

from experiments.program_aware import AGENTS, OTHERS, STYLES, answers, chosen, page

OURS = "plas:quantum_tokens=4096"


def rows(**ours: float) -> pd.DataFrame:
    """Three seeds; figures are 1 + seed / 100, of ours times what is named."""
    found = []
    for scheduler, agents, seed in itertools.product((*OTHERS, OURS), AGENTS, (1, 2, 3)):
        factor = {name: value for name, value in ours.items() if scheduler == OURS}
        figures = {name: (1 + 0.01 * seed) * factor.get(name, 1.0) for name in STYLES}
        found.append({"scheduler": scheduler, "agents": agents, "seed": seed} | figures)
    return pd.DataFrame(found)


def test_verdicts() -> None:
    said = answers(rows(p50=0.8, p99=1.5, session_slo_attainment=1.2), OURS)
    assert [line.rsplit(": ", 1)[1] for line in said] == ["holds."] * 6 + ["fails."] * 2
    assert said[0].startswith("- 1. Median time of a session, 96 agents, plas over sarathi-fcfs: 0.800")
    assert all(line.endswith("fails.") for line in answers(rows(), OURS))


def test_the_candidate_with_most_sessions_in_time_on_training_seeds_is_chosen() -> None:
    assert chosen(rows(session_slo_attainment=1.5)) == OURS


def test_the_page_has_a_row_a_scheduler_at_each_number_of_agents() -> None:
    text = page(rows(session_slo_attainment=1.5), rows(), OURS, 3, 100)
    assert all(text.count(f"\n| `{name}` | ") >= len(AGENTS) for name in (*OTHERS, OURS))
