"""ProServe's Table 1, run: which gain functions reward tricks that make service worse (its section 2).

Three small scenes on real runs of the simulator. A gain function is robust to a trick if it punishes it: if the gain of
the request it is played on falls. Where it stays, playing the trick costs nothing; where it rises, it is rewarded.

    python -m experiments.gain_tricks

discard, postpone: a long prompt makes a short request miss its TTFT; then there is time to serve it, beside one that
decodes all along. Honest: it is served at once. Discarded: never. Postponed: when the other is done.
postponed decoding: an engine takes 60 ms for an iteration where the TPOT SLO is 50 ms. Honest: tokens go out as they
come. Postponed: every second token is held back and goes out just before the next one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from servegym.evaluation.markdown import narrow_header, row
from servegym.latency_models.model import LatencyModel
from servegym.simulator.batching.ends import emit
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import FUNCTIONS, Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records import types as layout
from servegym.simulator.records.signatures import scheduler
from servegym.simulator.records.types import LEAVE_OUT
from servegym.simulator.runs.simulation import Simulation

GAIN_NAMES = ("vanilla-slo", "weighted-slo", "tempo", "ta-slo", "tdg")
DISCARD_UNTIL_S = 20.0  # the other request still decodes, so the discarded one is never served
HELD_BACK_S = 1e-3  # a token held back goes out this long before the next
LATE = 2  # the request that misses its TTFT


class Answer(NamedTuple):
    """What a gain function says of a trick: the gain of the request concerned, honest and with the trick."""

    trick: str
    gain: str
    honest: float
    tricked: float

    @property
    def verdict(self) -> str:
        if self.tricked < self.honest:
            return "punished"
        return "rewarded" if self.tricked > self.honest else "free"


@scheduler
def served_at_once(context, ranks, limits):
    for position in range(context.queue.shape[0]):
        ranks[position].tier = 0
        ranks[position].key = context.requests[context.queue[position]].arrival_s


@scheduler
def discarding(context, ranks, limits):
    for position in range(context.queue.shape[0]):
        request = context.requests[context.queue[position]]
        missed = request.num_output_tokens == 0 and context.now_s >= request.first_deadline_s
        ranks[position].tier = LEAVE_OUT if missed else 0
        ranks[position].key = request.arrival_s


def late_request() -> Workload:
    """One that decodes all along, one whose prompt takes seconds, and one that comes while it does."""
    return Workload.from_columns(
        {
            "arrival_s": [0.0, 1.0, 1.1],
            "prompt_tokens": [100, 24000, 200],
            "output_tokens": [1800, 1, 100],
            "weight": [1.0, 1.0, 2.0],
        },
        name="late-request",
    )


def run(workload: Workload, policy: Policy, deployment: Deployment, gain: str, until_s: float = np.inf) -> Simulation:
    simulation = Simulation(
        Scenario(workload, deployment, policy, Gain(gain, first_weight=10.0), until_s), record_timeline=True
    )
    simulation.run()
    return simulation


def unserved_tricks() -> list[Answer]:
    """Discard and postpone, under every gain function."""
    from servegym.latency_models.profile import load_profile

    deployment = load_profile("a100-llama3-8b").deployment()
    honest = Policy("served-at-once", "scheduler", "in order of arrival", "", served_at_once)
    tricky = Policy("discarding", "scheduler", "in order of arrival, without those that missed TTFT", "", discarding)
    answers = []
    for gain in GAIN_NAMES:
        served = float(run(late_request(), honest, deployment, gain).arrays.outcomes["gain"][LATE])
        for trick, until_s in (("discard", DISCARD_UNTIL_S), ("postpone", np.inf)):
            tricked = run(late_request(), tricky, deployment, gain, until_s)
            answers.append(Answer(trick, gain, served, float(tricked.arrays.outcomes["gain"][LATE])))
    return answers


def postponed_decoding() -> list[Answer]:
    """Holding back every second token of a slow engine, under every gain function."""
    slow = LatencyModel.from_values(
        "linear", {"a_p": 0.0, "b_p": 0.0, "c_p": 1e-5, "a_d": 0.0, "b_d": 0.0, "t_c": 0.06}
    )
    workload = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [200], "output_tokens": [200]}, name="slow")
    policy = Policy("served-at-once", "scheduler", "in order of arrival", "", served_at_once)
    simulation = run(workload, policy, Deployment(slow, slow, 1000), "tdg")
    timeline = simulation.result().timeline
    out_s = timeline["time_s"][timeline["kind"] == "token"].to_numpy()
    held_s = out_s.copy()
    held_s[1:-1:2] = out_s[2::2] - HELD_BACK_S
    return [
        Answer(
            "postponed decoding", gain, delivered_gain(workload, gain, out_s), delivered_gain(workload, gain, held_s)
        )
        for gain in GAIN_NAMES
    ]


def delivered_gain(workload: Workload, gain: str, delivered_s: Sequence[float] | np.ndarray) -> float:
    """Gain of the first request when its tokens reach the user at these times, float64[tokens]."""
    policy = Policy("served-at-once", "scheduler", "in order of arrival", "", served_at_once)
    second = LatencyModel.from_values("linear", {"a_p": 0, "b_p": 0, "c_p": 0, "a_d": 0, "b_d": 0, "t_c": 1.0})
    scenario = Scenario(workload, Deployment(second, second, 1000), policy, Gain(gain, first_weight=10.0))
    request, outcome = Simulation(scenario).arrays.requests[0], np.zeros(1, layout.OUTCOME)[0]
    outcome.output_tokens = len(delivered_s)
    status = np.zeros(1, layout.RUN_STATUS)[0]
    status.buffered_first_token = 1
    histogram = np.zeros(layout.TBT_BINS, "i8")
    for now_s in delivered_s:
        earned = FUNCTIONS[gain](request, outcome, float(now_s))
        emit(request, outcome, status, histogram, earned, float(now_s))
    return float(outcome.gain)


def answers() -> list[Answer]:
    """Every trick under every gain function."""
    return unserved_tricks() + postponed_decoding()


def as_markdown(found: list[Answer]) -> str:
    """The answers as a table: gain when served honestly -> with the trick, and what that makes of the trick."""
    tricks = list(dict.fromkeys(answer.trick for answer in found))
    lines = narrow_header("gain function", *tricks)
    for gain in GAIN_NAMES:
        cells = [
            f"{answer.honest:.4g} -> {answer.tricked:.4g}, {answer.verdict}" for answer in found if answer.gain == gain
        ]
        lines.append(row(gain, *cells))
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown(answers()))
