"""What the processes do that a policy may crash or hang: check it, and run it on a panel."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.errors import PolicyError
from servegym.evaluation.policy_checks import worker as checker
from servegym.evaluation.policy_files import load_policy_files
from servegym.evaluation.scoring import fence
from servegym.evaluation.scoring.cases import FULL, QUICK, Cases
from servegym.evaluation.scoring.results import score_of
from servegym.simulator import policies

if TYPE_CHECKING:
    from servegym.simulator.policies import Policy

    Say = Callable[..., None]
else:
    Say = Callable

LARGEST_FILE = 2**26  # bytes: kernels in the cache have less


def check(job: dict[str, Any], say: Say) -> None:
    """As `check_policy` does, unless it is only to be loaded; then {"kind": ...} of the policy that is to be scored."""
    path = Path(job["path"])
    limit_resources(job["memory_gib"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(job["check_s"])
    fence.put_up(path, lambda problem: say(refused=problem))
    found = loaded(path) if job["do"] == "load" else checker.check_file(path, job["check_s"], say)
    say(kind=chosen(found, path, job["name"]).kind)


def run(job: dict[str, Any], cases: Cases, say: Say) -> None:
    """{"policy": ...} when it is loaded, {"stage": ...} before one begins, {"run": ...} for each run."""
    limit_resources(job["memory_gib"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, job["limit_s"])  # a kernel that never returns cannot be interrupted otherwise
    if job["path"]:
        path = Path(job["path"])
        fence.put_up(path, lambda problem: say(refused=problem))
        policy = chosen(loaded(path), path, job["name"])
    else:
        policy = named(job["kind"], job["name"])
    lines: list[dict[str, Any]] = [{"policy": policy.label, "panel": cases.panel.name, "scenarios": len(cases.places)}]
    lines += [{"run": one} for one in cases.baselines]
    for line in lines:
        say(**line)
    for stage in (QUICK, FULL):
        if stage == FULL and score_of(lines).metrics["share"] < job["least"]:
            return
        lines.append({"stage": stage})
        say(stage=stage)
        for one in cases.runs(policy, stage):
            lines.append({"run": one})
            say(run=one)


def limit_resources(memory_gib: float) -> None:
    """Of what is allocated, by mapping too (libraries that are only mapped do not count), and of what is printed."""
    limit = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def named(kind: str, text: str) -> Policy:
    """A policy by name, or learned:PATH."""
    from servegym.baselines import registry

    return {"scheduler": registry.scheduler, "router": registry.router}[kind](text)


def loaded(path: Path) -> list[Policy]:
    """The policies that a file registers."""
    before = policies.registered()
    load_policy_files([path])
    return [policy for key, policy in policies.registered().items() if key not in before]


def chosen(found: list[Policy], path: Path, name: str | None) -> Policy:
    """The one that is to be scored. Raises PolicyError for none, or for several without a name."""
    if not found:
        raise PolicyError(f"{path.name} registers no policy; it should call register(Policy(...))")
    matching = [policy for policy in found if name in (None, policy.name)]
    if len(matching) != 1:
        said = f"has no policy {name!r}" if name else f"registers {len(found)} policies"
        raise PolicyError(f"{path.name} {said}; name one of them: {', '.join(policy.name for policy in found)}")
    return matching[0]
