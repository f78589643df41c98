"""The plug-in's policy tunes itself: by what it has seen, in a thread that the engine does not wait for."""

from types import SimpleNamespace

import numpy as np
import pytest

from servegym.adapters.vllm import self_tuning
from servegym.adapters.vllm.decision import Decisions
from servegym.adapters.vllm.settings import read_settings
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import get_policy
from servegym.simulator.runs.simulation import Simulation
from tests.adapters.vllm.test_decision import decisions, settings_for

EMPTY = np.zeros(0, "i4")


@pytest.fixture
def made(tmp_path) -> Decisions:
    return decisions(settings_for(tmp_path, get_policy("scheduler", "expected-gain"), self_tuning=True), [])


def came(made: Decisions, at_s: float, prompt_tokens: int = 40, most: int = 30) -> int:
    request = SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args={"ttft_slo_s": 2.0}),
        priority=1,
        num_prompt_tokens=prompt_tokens,
        max_tokens=most,
    )
    slot = made.add(request, at_s, 1000)
    made.mirror.join(slot)
    return slot


def out(made: Decisions, slot: int, tokens: int) -> None:
    one = np.array([slot], "i4")
    made.mirror.deliver(one, np.array([tokens], "i4"), np.array([tokens], "i4"), 1.0)


def test_what_is_known_of_requests(made):
    tuning = made.tuning
    first, second, gone = (came(made, at_s) for at_s in (5.0, 5.5, 6.0))
    came(made, 5.25)
    out(made, first, 7)
    out(made, second, 9)
    made.leave([first], finished=True)
    made.leave([gone], finished=False)  # without a token: nothing is known of it
    table = tuning.seen().workload.table
    assert table["arrival_s"].tolist() == [0.0, 0.25, 0.5]
    assert table["output_tokens"][0] == 7
    assert 9 < table["output_tokens"][2] <= 30 and 0 < table["output_tokens"][1] <= 30
    assert (table["prompt_tokens"] == 40).all() and (table["ttft_slo_s"] == 2.0).all()
    scenario = tuning.seen()
    assert scenario.deployment.device.batch_s is scenario.deployment.estimator.batch_s
    assert scenario.deployment.total_blocks == 100
    Simulation(scenario).run()


def test_it_uses_what_was_chosen_at_the_next_decision(made, monkeypatch):
    tuning = made.tuning
    seen = []

    def chosen(scenario, how, numbers, present, serve):
        seen.append((len(scenario.workload), present))
        return 3

    monkeypatch.setattr(self_tuning, "best_setting", chosen)
    for k in range(150):
        came(made, 0.1 * k)
    tuning.thread.join(10)
    before = made.mirror.run.parameters.copy()
    assert made.plan(20.0, 100, 1000, 1000, 10) is not None
    assert seen == [(100, 0)]
    after = made.mirror.run.parameters
    assert (after[:, : tuning.numbers[3].shape[1]] == tuning.numbers[3]).all() and (after != before).any()
    assert made.metrics.counts["choices"] == made.metrics.counts["changes"] == 1
    for k in range(50):
        came(made, 15 + 0.1 * k)
    tuning.thread.join(10)
    assert made.plan(30.0, 100, 1000, 1000, 10) is not None
    assert seen == [(100, 0), (200, 3)]
    assert made.metrics.counts["choices"] == 2 and made.metrics.counts["changes"] == 1


def test_it_chooses(made):
    for k in range(100):
        came(made, 0.1 * k)
    made.tuning.thread.join(60)
    assert made.tuning.chosen is not None
    assert made.plan(20.0, 100, 1000, 1000, 10) is not None
    assert made.metrics.counts["choices"] == 1


def test_an_error_ends_the_tuning_and_nothing_else(tmp_path, monkeypatch):
    warnings: list[str] = []
    made = decisions(settings_for(tmp_path, get_policy("scheduler", "expected-gain"), self_tuning=True), warnings)

    def broken(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(self_tuning, "best_setting", broken)
    before = made.mirror.run.parameters.copy()
    for k in range(100):
        came(made, 0.1 * k)
    made.tuning.thread.join(10)
    assert made.plan(20.0, 100, 1000, 1000, 10) is not None
    for k in range(300):
        came(made, 10 + 0.1 * k)
    assert made.tuning.thread is None
    assert (made.mirror.run.parameters == before).all()
    assert len(warnings) == 1 and "no room" in warnings[0]


def test_settings(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text("")
    assert read_settings({}, {"SERVEGYM_POLICY": str(path), "SERVEGYM_SELF_TUNING": "1"}).self_tuning
    assert not read_settings({}, {"SERVEGYM_POLICY": str(path)}).self_tuning
    with pytest.raises(PolicyError, match="cannot tune itself"):
        decisions(settings_for(tmp_path, get_policy("scheduler", "edf"), self_tuning=True), [])
