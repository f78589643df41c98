"""The process that runs a policy for a score: `python -m servegym.evaluation.scoring.worker REQUEST.json`.

A line of JSON for each step: {"policy": ...} when the file is loaded, {"stage": ...} before one begins, {"run": ...} for
each run, {"refused": ...} where something is wrong with the file or the panel.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.errors import PolicyError, ServegymError

if TYPE_CHECKING:
    from servegym.evaluation.panels.part import Part
    from servegym.simulator.policies import Policy

# Whom a policy is held against, and on what, by its kind.
BASELINES = {"scheduler": ("slide-batching", "expected-gain"), "router": ("min-load", "gorouting")}
PANELS = {"scheduler": "score", "router": "score_routers"}
STAGES = ("quick", "full")


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main(request: dict[str, Any]) -> None:
    limit_memory(request["memory_gib"])
    from servegym.evaluation.panels.evaluation import Evaluation
    from servegym.evaluation.panels.panel import load_panel
    from servegym.evaluation.scoring.best_found import best_found

    try:
        policy = policy_in(Path(request["path"]), request["name"])
        panel = load_panel(request["panel"] or PANELS[policy.kind])
        say(policy=policy.label, kind=policy.kind, panel=panel.name)
        others = tuple(name for name in BASELINES[policy.kind] if name != policy.name)
        parts = Evaluation(panel, (policy.name, *others), policy.kind).parts
        known = best_found()
        for stage in STAGES:
            say(stage=stage)
            for part in parts:
                for load in part.loads:
                    # Quick: the highest load of each part. What was run in it is not run again.
                    if (load == max(part.loads)) == (stage == "quick"):
                        for seed in part.seeds_of(load):
                            run_all(part, load, seed, known)
    except ServegymError as error:
        say(refused=str(error))
    except MemoryError:
        say(refused=f"it takes more than {request['memory_gib']:g} GiB of memory; it should do with less")


def limit_memory(gib: float) -> None:
    """What is allocated, by mapping too; libraries that are only mapped do not count."""
    limit = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def policy_in(path: Path, name: str | None) -> Policy:
    """The policy that the file registers. Raises PolicyError for none, or for several without a name."""
    from servegym.baselines import registry
    from servegym.evaluation.policy_files import load_policy_files
    from servegym.simulator import policies

    registry.load()
    before = policies.registered()
    load_policy_files([path])
    found = {key: policy for key, policy in policies.registered().items() if key not in before}
    names = [key[1] for key in found]
    chosen = [policy for key, policy in found.items() if name in (None, key[1])]
    if not found:
        raise PolicyError(f"{path.name} registers no policy; it should call servegym.register(...) with one")
    if len(chosen) != 1:
        said = f"has no policy {name!r}" if name else f"registers {len(found)} policies"
        raise PolicyError(f"{path.name} {said}; say which with --name: {', '.join(names)}")
    if chosen[0].kind not in PANELS:
        raise PolicyError(f"{path.name}: {chosen[0].kind} {chosen[0].name}; schedulers and routers are scored")
    return chosen[0]


def run_all(part: Part, load: float, seed: int, known: dict[str, float]) -> None:
    """Each candidate of a part, the policy first, on the same requests; a line each."""
    from servegym.evaluation.scoring.best_found import key_of
    from servegym.simulator.simulation import Simulation

    for place, (label, candidate) in enumerate(part.candidates.items()):
        scenario = part.scenario(load, seed, candidate)
        summary = Simulation(scenario).run().summary
        figures = {
            name: summary[name]
            for name in ("tdg_ratio", "slo_attainment", "starved", "fairness_by_client", "fairness_by_length",
                         "preemptions", "gain_ratio")
        }  # fmt: skip
        say(
            run={
                "trace": part.trace_name, "device": part.profile.name, "load": load, "seed": seed, "policy": label,
                "judged": place == 0, "best_found": known.get(key_of(scenario)), "ttft_p99_s": summary["ttft_s"]["p99"],
                "round_us": 1e6 * summary["wall_s"] / max(1, summary["scheduling_rounds"]), **figures,
            }
        )  # fmt: skip


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
