"""Judge a policy by repeating its runs from its decisions, in a process that has never loaded the policy.

The output of the policy's process is untrusted. The simulator reads its bytes as decisions, and refuses illegal ones;
all figures are of the repeated run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from servegym.baselines import registry
from servegym.errors import PolicyError, ServegymError
from servegym.evaluation.scoring.cases import FULL, QUICK, Cases, Place, run_of
from servegym.evaluation.scoring.decisions import Log, Traits, replayed, simulated
from servegym.evaluation.scoring.processes import Line, Process, Send
from servegym.evaluation.scoring.results import Run, score_of
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation

Judge = Callable[[int, Place], Run]
LONGEST_LABEL = 100


def judge(cases: Cases, label: str, judged: Judge, least: float, send: Send) -> None:
    """Run the stages, and send {"policy": ...}, {"run": ...} of each baseline's run, {"stage": ...} before each stage,
    {"run": ...} of each run of the policy.

    The second stage is left out for a share below `least` in the first.
    """
    panel = {"panel": cases.panel.name, "scenarios": len(cases.places), "notes": cases.notes}
    lines: list[Line] = [{"policy": label, **panel, "least": least}]
    lines += [{"run": one} for one in cases.baselines]
    for line in lines:
        send(**line)
    for stage in (QUICK, FULL):
        if stage == FULL and score_of(lines).metrics["share"] < least:
            return
        lines.append({"stage": stage})
        send(stage=stage)
        for number, place in enumerate(cases.places):
            if place.stage == stage:
                lines.append({"run": judged(number, place)})
                send(**lines[-1])


def named_judge(cases: Cases, name: str) -> tuple[str, Judge]:
    """Return label and judge of a registered policy, or an artifact, which is run directly."""
    policy = {"scheduler": registry.scheduler, "router": registry.router}[cases.kind](name)

    def judged(number: int, place: Place) -> Run:
        return run_of(place, Simulation(cases.scenario(place, policy)), policy.label, judged=True)

    return policy.label, judged


def file_judge(cases: Cases, process: Process, log: Log, asker: int | None) -> tuple[str, Judge]:
    """Return label and judge of a policy whose code runs in a process (`worker.play`) that records into the log."""
    output = process.lines(asker)
    first = next_line(output, "policy", str)
    label = " ".join(first["policy"].split())[:LONGEST_LABEL]
    again = repeated_policy(first.get("traits"), cases.kind)

    def judged(number: int, place: Place) -> Run:
        process.send(str(number))
        line = next_line(output, "used", int)
        own = log.copy(line["used"])
        simulation = simulated(cases.scenario(place, again), cases.kind, 0, own)
        try:
            run = run_of(place, simulation, label, judged=True)
        except ServegymError as error:
            raise PolicyError(f"its run cannot be repeated from its decisions: {error}") from None
        if own.used < len(own.bytes):
            raise PolicyError("its run cannot be repeated from its decisions: it recorded more than it was asked for")
        wall_s = line.get("wall_s")  # the repetition's own time does not include the decisions
        if not isinstance(wall_s, float) or not math.isfinite(wall_s):
            return run
        return run | {"round_us": 1e6 * wall_s / max(1, run["rounds"])}

    return label, judged


def next_line(output: Iterator[Line], name: str, kind: type) -> Line:
    """Return the next line that has a value of this name and type.

    Raises PolicyError for a refusal, EndedEarly if there is no such line.
    """
    for line in output:
        if isinstance(line.get("refused"), str):
            raise PolicyError(line["refused"])
        if type(line.get(name)) is kind:
            return line
    raise EndedEarly


class EndedEarly(Exception):
    """A process ended without an answer."""


def repeated_policy(traits: Any, kind: str) -> Policy:
    """Return the policy that replays the decisions of a policy with these reported traits. Raises PolicyError."""
    try:
        found = Traits(**traits)
    except TypeError:
        raise PolicyError("its process does not report what it is") from None
    flags = (found.tasks, found.victims, found.moves_engines)
    if found.kind != kind or not all(isinstance(flag, bool) for flag in flags):
        raise PolicyError(f"its process reports a {found.kind}; a {kind} is scored")
    return replayed(found)
