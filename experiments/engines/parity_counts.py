"""Steps in which vLLM did what was decided, by version and feature: the table of docs/results/vllm-parity.md.

    python -m experiments.engines.parity_counts [--page docs/results/vllm-parity.md]   # of this environment
    python -m experiments.engines.parity_counts --engines .engines/vllm-*/bin/python --page docs/results/vllm-parity.md

Three kinds of line. Of RUNS: steps that are those of the simulator, up to the first that differs in each run (tokens of
each request, and the clock to the last bit). Of features, in random runs at vLLM's defaults: steps that were as the
policy had decided, what became of the requests otherwise, and steps that vLLM decided (feature_parity.py). Of the fuzz:
scenes that failed, and the same counts. What is counted is kept in OUT/VERSION.json as it comes, and not counted again;
the page gets a column for each version that is there.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.engines.async_parity import OWN, workload_for
from experiments.engines.feature_parity import DEFAULTS, of_feature
from experiments.engines.fuzz import fuzz
from experiments.engines.fuzz_requests import FEATURES
from experiments.engines.plugin_parity import first_difference, own_scheduler, plugged_in, simulate
from experiments.engines.vllm_driving import Limits, drive
from experiments.engines.vllm_driving_ahead import drive_ahead
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.errors import VllmError
from servegym.evaluation.markdown import narrow_header, row
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.policies.policy import get_policy

BEGIN, END = "<!-- parity: written by experiments.engines.parity_counts -->", "<!-- end of parity -->"
FUZZ = "fuzz"
Counts = dict[str, Any]  # of a line; steps, and those that were not as decided, at least


class Runs(NamedTuple):
    """What is compared with the simulator. decides: a policy in the plug-in; a number: vLLM itself, with that token
    budget. cases: of each, (decides, blocks of 16 tokens, seed, requests (sessions with caching), rate/s)."""

    label: str
    asynchronous: bool
    caching: bool
    cases: tuple[tuple[str | int, int, int, int, float], ...]


OWN_CASES = ((1024, 4000, 1, 80, 20.0), (512, 900, 2, 80, 20.0), (1024, 500, 3, 80, 30.0))
OWN_SESSIONS = ((1024, 900, 2, 30, 4.0), (256, 400, 4, 30, 4.0))
PLUGGED = (
    ("slide-batching", 4000, 1, 80, 20.0),
    ("slide-batching", 900, 1, 80, 60.0),
    ("expected-gain", 900, 1, 80, 60.0),
    ("weighted-vtc:max_num_batched_tokens=1024", 900, 1, 80, 40.0),
)
PLUGGED_SESSIONS = (
    ("slide-batching", 900, 2, 30, 4.0),
    ("expected-gain", 400, 10, 30, 8.0),
    ("vllm-v1:max_num_batched_tokens=1024", 400, 3, 30, 4.0),
)
RUNS = (
    Runs("its own scheduler", False, False, OWN_CASES),
    Runs("its own, prefix caching", False, True, OWN_SESSIONS),
    Runs("its own, asynchronous", True, False, OWN_CASES),
    Runs("its own, asynchronous, prefix caching", True, True, OWN_SESSIONS),
    Runs("policies", False, False, PLUGGED),
    Runs("policies, prefix caching", False, True, PLUGGED_SESSIONS),
    Runs("policies, asynchronous", True, False, PLUGGED),
    Runs("policies, asynchronous, prefix caching", True, True, PLUGGED_SESSIONS),
)


def counted(runs: Runs, profile: Profile) -> Counts:
    """Steps as simulated, up to the first difference of each run, and steps."""
    equal = total = preempted = 0
    for decides, blocks, seed, count, rate_per_s in runs.cases:
        own, workload = isinstance(decides, int), workload_for(runs.caching, seed, count, rate_per_s)
        limits = Limits(
            blocks,
            max_num_batched_tokens=int(decides) if own else 2**16,
            async_scheduling=runs.asynchronous,
            prefix_caching=runs.caching,
        )
        policy = get_policy("scheduler", OWN.format(decides) if own else str(decides))
        result = simulate(workload, limits, policy, profile, corrected=not own)
        made = own_scheduler(limits) if own else plugged_in(workload, limits, policy, profile, "exact")
        served = (drive_ahead if runs.asynchronous else drive)(made, workload, profile.device)
        first = first_difference(served, result)
        total += len(served.steps)
        equal += len(served.steps) if first is None else first
        preempted += sum(len(step.preempted) for step in served.steps)
    return {"steps": total, "deviating_steps": total - equal, "preempted": preempted}


def of_fuzz(steps: int, minutes: float) -> Counts:
    """Of scenes from seed 0 on: what failed, and the plug-in's counters by what scenes have."""
    found = fuzz(steps, 0, minutes)
    return {"scenes": found.scenes, "failures": found.failures, "deviations": found.deviations, **found.by_part}


def measured(steps: int, fuzz_steps: int, minutes: float, known: Mapping[str, Counts]) -> Iterator[tuple[str, Counts]]:
    """Each line that is not known, and what this version has there."""
    profile = load_profile("a100-llama3-8b")
    for runs in RUNS:
        if runs.label not in known:
            yield runs.label, counted(runs, profile)
    with tempfile.TemporaryDirectory() as folder:
        for feature in ("", *FEATURES):
            if (label := feature_label(feature)) not in known:
                try:
                    counts, deviations = of_feature(DEFAULTS | {feature} - {""}, steps, Path(folder))
                    yield label, {**counts, "deviations": deviations}
                except VllmError as error:
                    yield label, {"error": str(error)}
    if fuzz_steps > 0 and FUZZ not in known:
        yield FUZZ, of_fuzz(fuzz_steps, minutes)


def feature_label(feature: str) -> str:
    return f"at its defaults, with {feature}" if feature else "vLLM at its defaults"


def cell(counts: Counts) -> str:
    """What the page says of a line."""
    if "error" in counts:
        return f"fails: {counts['error']}"
    as_decided = counts["steps"] - counts.get("deviating_steps", 0)
    words = [f"{as_decided:,} of {counts['steps']:,}"]
    words += [f"{n:,} {what}" for what, n in sorted(counts.get("deviations", {}).items()) if n]
    if counts.get("deviating_hits"):
        words.append(f"{counts['deviating_hits']:,} hits")
    if counts.get("fallback_steps"):
        words.append(f"{counts['fallback_steps']:,} by vLLM")
    return "; ".join(words)


def rows_of(lines: Mapping[str, Counts]) -> dict[str, str]:
    """The cells of a version by the names of their rows."""
    rows = {label: cell(counts) for label, counts in lines.items() if label != FUZZ}
    if FUZZ in lines:
        counts = lines[FUZZ]
        order: Counter[str] = Counter(counts["order only"])
        exact: Counter[str] = Counter(counts["all"])
        exact.subtract(order)
        rows["fuzz, `exact`"] = cell({**exact, "deviations": counts["deviations"]})
        rows["fuzz, `order`"] = cell(order)
        rows["fuzz: by vLLM where the policy is made to fail"] = (
            f"{counts['failing policy'].get('fallback_steps', 0):,}"
        )
        rows["fuzz: scenes that failed"] = f"{len(counts['failures'])} of {counts['scenes']}"
    return rows


def cells_on(page: str) -> dict[str, dict[str, str]]:
    """The cells of each version that the page has already, by the names of their rows."""
    lines = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    rows = [[text.strip() for text in line.strip("|").split("|")] for line in lines]
    versions = rows[0][1:] if rows else []
    return {version: {row[0]: row[place] for row in rows[2:]} for place, version in enumerate(versions, 1)}


def page_with(page: str, columns: Mapping[str, Mapping[str, Counts]]) -> str:
    """The page with a column for each version; those of other versions that it has stay as they are.

    Raises VllmError for a page without a place for it.
    """
    if BEGIN not in page or END not in page:
        raise VllmError(f'the page has no "{BEGIN}" and "{END}" to write between')
    cells = cells_on(page) | {version: rows_of(counts) for version, counts in columns.items()}
    versions = sorted(cells, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])
    labels = list(dict.fromkeys(label for version in versions for label in cells[version]))
    lines = narrow_header("steps as simulated, or as decided, of steps", *versions)
    lines += [row(label, *(cells[v].get(label, "") for v in versions)) for label in labels]
    head, _, rest = page.partition(BEGIN)
    return "\n".join([head + BEGIN, *lines, END + rest.partition(END)[2]])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engines", type=Path, nargs="*", help="Python of each environment (default: this one)")
    parser.add_argument("--out", type=Path, default=Path("results/engines/parity"), help="(default: %(default)s)")
    parser.add_argument("--page", type=Path, help="a page to write the table into")
    parser.add_argument("--steps", type=int, default=1000, help="of each feature, at least (default: %(default)s)")
    parser.add_argument("--fuzz-steps", type=int, default=10_000, help="of the fuzz; 0: none (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60.0, help="of the fuzz at most (default: %(default)s)")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = {"steps": given.steps, "fuzz_steps": given.fuzz_steps, "minutes": given.minutes}
    for python in given.engines or ():
        options = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
        subprocess.run([python, "-m", __spec__.name, f"--out={given.out}", *options], check=True)
    if not given.engines:
        registry.load()
        path = given.out / f"{installed_version()}.json"
        lines = json.loads(path.read_text("utf-8")) if path.exists() else {}
        for label, counts in measured(**sizes, known=lines):
            lines[label] = counts
            path.write_text(json.dumps(lines, indent=1), encoding="utf-8")
            print(*(f"{row}: {text}" for row, text in rows_of({label: counts}).items()), sep="\n", flush=True)
    if given.page is not None:
        columns = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(given.out.glob("*.json"))}
        given.page.write_text(page_with(given.page.read_text("utf-8"), columns), encoding="utf-8")


if __name__ == "__main__":
    main()
