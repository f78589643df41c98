"""The result of a policy's decisions: each run is repeated from them in a process that has never loaded the policy.

Nothing that the policy's process says is trusted. Its decisions are bytes that the simulator reads as decisions, and
refuses if they are illegal; all figures are of the repeated run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from servegym.baselines import registry
from servegym.errors import PolicyError, ServegymError
from servegym.evaluation.scoring.cases import FULL, QUICK, Cases, Place, run_of
from servegym.evaluation.scoring.decisions import Log, Traits, simulated, taken_again
from servegym.evaluation.scoring.processes import Line, Process, Say
from servegym.evaluation.scoring.results import Run, score_of
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation

Judge = Callable[[int, Place], Run]
LONGEST_LABEL = 100


def judge(cases: Cases, label: str, judged: Judge, least: float, say: Say) -> None:
    """Say {"policy": ...}, {"run": ...} of the baselines, {"stage": ...} before each stage, {"run": ...} of each run of
    the policy. The second stage is left out for less than `least` in the first."""
    panel = {"panel": cases.panel.name, "scenarios": len(cases.places), "notes": cases.notes}
    lines: list[Line] = [{"policy": label, **panel, "least": least}]
    lines += [{"run": one} for one in cases.baselines]
    for line in lines:
        say(**line)
    for stage in (QUICK, FULL):
        if stage == FULL and score_of(lines).metrics["share"] < least:
            return
        lines.append({"stage": stage})
        say(stage=stage)
        for number, place in enumerate(cases.places):
            if place.stage == stage:
                lines.append({"run": judged(number, place)})
                say(**lines[-1])


def named_judge(cases: Cases, name: str) -> tuple[str, Judge]:
    """Judge a shipped policy, or one of which a file holds only numbers: it is run directly."""
    policy = {"scheduler": registry.scheduler, "router": registry.router}[cases.kind](name)

    def judged(number: int, place: Place) -> Run:
        return run_of(place, Simulation(cases.scenario(place, policy)), policy.label, judged=True)

    return policy.label, judged


def file_judge(cases: Cases, process: Process, log: Log, asker: int | None) -> tuple[str, Judge]:
    """Of a policy whose code runs in another process (`worker.play`), which writes its decisions into a log."""
    said = process.lines(asker)
    first = next_said(said, "policy", str)
    label = " ".join(first["policy"].split())[:LONGEST_LABEL]
    again = repeated_policy(first.get("traits"), cases.kind)

    def judged(number: int, place: Place) -> Run:
        process.tell(str(number))
        line = next_said(said, "used", int)
        own = log.copy(line["used"])
        simulation = simulated(cases.scenario(place, again), cases.kind, 0, own)
        try:
            run = run_of(place, simulation, label, judged=True)
        except ServegymError as error:
            raise PolicyError(f"its run cannot be repeated from its decisions: {error}") from None
        if own.used < len(own.bytes):
            raise PolicyError("its run cannot be repeated from its decisions: it wrote down more than it was asked for")
        wall_s = line.get("wall_s")  # the time of the repetition does not include the decisions
        if not isinstance(wall_s, float) or not math.isfinite(wall_s):
            return run
        return run | {"round_us": 1e6 * wall_s / max(1, run["rounds"])}

    return label, judged


def next_said(said: Iterator[Line], name: str, kind: type) -> Line:
    """The next line that has something of that name. Raises PolicyError for a refusal, Silence where there is none."""
    for line in said:
        if isinstance(line.get("refused"), str):
            raise PolicyError(line["refused"])
        if type(line.get(name)) is kind:
            return line
    raise Silence


class Silence(Exception):
    """A process has ended before it said what it was asked for."""


def repeated_policy(traits: Any, kind: str) -> Policy:
    """The policy that replays the decisions of a policy with these reported traits."""
    try:
        found = Traits(**traits)
    except TypeError:
        raise PolicyError("its process says nothing of what it is") from None
    flags = (found.tasks, found.victims, found.moves_engines)
    if found.kind != kind or not all(isinstance(flag, bool) for flag in flags):
        raise PolicyError(f"its process says that it is a {found.kind}; a {kind} is scored")
    return taken_again(found)
