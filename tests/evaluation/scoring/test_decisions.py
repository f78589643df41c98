"""Decisions that are written down and taken again: the same run, and nothing else passes for it."""

import dataclasses
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servegym.baselines import registry
from servegym.errors import PolicyError
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.policy_checks.scenes import scenes_for
from servegym.evaluation.scoring import judging
from servegym.evaluation.scoring.cases import FULL, Place
from servegym.evaluation.scoring.decisions import (
    ENTRIES,
    HEAD,
    Log,
    log_index,
    recorded,
    replayed,
    simulated,
    traits_of,
)
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.loops import WHOLE
from servegym.simulator.runs.simulation import Simulation

pytestmark = pytest.mark.slow

PANEL = Path(__file__).with_name("small.yaml")
# Between them: ranks, victims of their own, lists, tasks that are suspended, numbers a policy keeps.
SCHEDULERS = ("vllm-v1", "expected-gain", "flow-prefill", "qoserve")


@pytest.fixture(scope="module")
def log() -> Log:
    return Log(mmap.mmap(-1, 2**25))


def run(scenario: Scenario, kind: str, place: int, log: Log) -> Simulation:
    simulation = simulated(scenario, kind, place, log)
    simulation.loop = WHOLE
    simulation.run()
    return simulation


def with_policy(scenario: Scenario, policy: Policy) -> Scenario:
    return dataclasses.replace(scenario, **{policy.kind: policy})


@pytest.mark.parametrize(
    "policy", [*map(registry.scheduler, SCHEDULERS), registry.router("gorouting")], ids=lambda policy: policy.name
)
def test_a_run_is_repeated_from_what_was_written_down(policy: Policy, log: Log) -> None:
    for name, scenario in scenes_for(policy):
        plain = Simulation(scenario)
        plain.loop = WHOLE
        plain.run()
        log.begin()
        noted = run(with_policy(scenario, recorded(policy)), policy.kind, log_index(policy), log)
        own = log.copy(log.used)
        again = run(with_policy(scenario, replayed(traits_of(policy))), policy.kind, 0, own)
        for one in (noted, again):
            assert one.arrays.outcomes.tobytes() == plain.arrays.outcomes.tobytes(), name
            assert one.arrays.status[0].now_s == plain.arrays.status[0].now_s
        assert own.used == len(own.bytes) > ENTRIES and not log.was_full


@pytest.fixture(scope="module")
def place() -> Place:
    part = Evaluation(load_panel(PANEL), ("edf", "sjf")).parts[0]
    return Place(part, max(part.loads), part.seeds_of(max(part.loads))[0], 0, FULL)


class Liar:
    """In the place of a policy's process: it has run one, and then says what it likes."""

    def __init__(self, lines: list[Any]):
        self.output = lines

    def lines(self, asker: Any) -> Iterator[Any]:
        return iter(self.output)

    def send(self, text: str) -> None:
        pass


class OneCase:
    kind = "scheduler"

    def scenario(self, place: Place, policy: Policy) -> Scenario:
        return place.part.scenario(place.load, place.seed, place.part.candidates["edf"]._replace(scheduler=policy))


def judged(log: Log, place: Place, lines: list[Any]) -> dict[str, Any]:
    _, judge = judging.file_judge(OneCase(), Liar(lines), log, None)  # type: ignore[arg-type]
    return judge(0, place)


def test_what_a_process_says_is_worth_nothing(log: Log, place: Place) -> None:
    policy = registry.scheduler("edf")
    log.begin()
    noted = simulated(OneCase().scenario(place, recorded(policy)), "scheduler", log_index(policy), log)
    honest, used, whole = noted.run().summary, log.used, log.bytes.copy()
    hello = {"policy": "edf", "traits": vars(traits_of(policy))}
    line = {"used": used, "tdg_ratio": 9.0, "run": {"tdg_ratio": 9.0}, "wall_s": float("nan"), "judged": True}
    found = judged(log, place, [hello, {"end": 0}, line])
    assert found["tdg_ratio"] == honest["tdg_ratio"] and np.isfinite(found["round_us"])

    for wrong in (0, -1, used - 8, used + 8, 2**62):
        with pytest.raises(PolicyError, match="cannot be repeated from its decisions"):
            judged(log, place, [hello, {"used": wrong}])
    for byte in (ENTRIES, ENTRIES + 8, ENTRIES + HEAD - 1):  # what was decided, about what, when
        log.bytes[byte] ^= 64
        with pytest.raises(PolicyError, match=r"cannot be repeated from its decisions: .* another decision"):
            judged(log, place, [hello, line])
        log.bytes[:] = whole
    for lines in ([], [hello], [hello, {"used": "all"}], [{"policy": 3}]):
        with pytest.raises(judging.EndedEarly):
            judged(log, place, lines)
    for traits in (
        None,
        {},
        {"kind": "scheduler"},
        hello["traits"] | {"kind": "router"},
        hello["traits"] | {"tasks": 2},
    ):
        with pytest.raises(PolicyError):
            judged(log, place, [{"policy": "edf", "traits": traits}])


def test_a_log_that_is_full_says_so() -> None:
    log, policy = Log(bytearray(200)), registry.scheduler("edf")
    _, scenario = next(iter(scenes_for(policy)))
    log.begin()
    run(with_policy(scenario, recorded(policy)), "scheduler", log_index(policy), log)
    assert log.was_full and log.used <= 200
