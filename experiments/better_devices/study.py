"""Do verdicts and tunings change on devices that measured runs say more about? Hypothesis: better_devices.md.

    SERVEGYM_DATA=DATA python -m experiments.better_devices.study

runs what is planned, the cheapest first, and keeps each run: after Ctrl-C the same command goes on. Then

    SERVEGYM_DATA=DATA python -m experiments.better_devices.page docs/results/better-devices.md
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from experiments.better_devices import tuned, verdicts
from experiments.better_devices.devices import JUDGED, RECIPE, SLOWED, TERMS, write
from experiments.better_devices.plan import CHEAP, COSTLY, EXAMINED, SMALL, Planned
from experiments.claims.harness.registry import Claim, find_claims
from experiments.claims.harness.settings import FULL
from experiments.claims.harness.study import Study

OUT, PAGES = Path("results") / "better-devices", Path("docs") / "results"
OLD = "old"


def moved(planned: Planned, kind: str, out: Path) -> Claim:
    """The claim on a stand-in, or on the old profile itself, in the families planned."""
    (claim,) = find_claims([planned.claim])
    families = tuple(family for family in claim.sized(FULL).families if family != planned.without)
    if kind == OLD:
        return dataclasses.replace(claim, families=families, devices=(planned.old,))
    device = str(write(planned.old, kind, out / "devices"))
    return dataclasses.replace(claim.on(device, planned.old), families=families)


def verdicts_file(planned: Planned, kind: str, out: Path) -> Path:
    return out / "verdicts" / f"{planned.claim}-{planned.old}-{kind}.json"


def tuned_device(kind: str, out: Path) -> str:
    """Of the evaluations of what was tuned: the old profile or a stand-in."""
    return SMALL if kind == OLD else str(write(SMALL, kind, out / "devices"))


def timed(what: str, work: Callable[[], str]) -> None:
    """Do it, and say what came of it and what it cost."""
    began_s = time.process_time()
    found = work()
    print(f"{what}: {found}, {time.process_time() - began_s:.0f} s of CPU", flush=True)


def run_claim(planned: Planned, kind: str, out: Path) -> str:
    """Hold, undecided, fail; kept beside its runs."""
    outcome = Study(moved(planned, kind, out), FULL).run(out, lambda done, cells: None)
    found = verdicts.of_outcome(outcome)
    verdicts.save(found, verdicts_file(planned, kind, out))
    return verdicts.counts(found)


def run_claims(plan: Iterable[Planned], out: Path) -> None:
    for planned in plan:
        for kind in planned.kinds:
            what = f"{planned.claim} on {kind} of {planned.old}"
            timed(what, functools.partial(run_claim, planned, kind, out))


def evaluate_tuning(kind: str, pages: Path, out: Path) -> str:
    rows = tuned.evaluate(tuned_device(kind, out), pages / tuned.PAGE, out / "evaluation")
    return f"{len(rows)} runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="where runs are kept and found again")
    parser.add_argument("--pages", type=Path, default=PAGES, help="the published pages of results")
    asked = parser.parse_args()
    first = CHEAP[0]
    timed(f"{first.claim} on {first.old} again", functools.partial(run_claim, first, OLD, asked.out))
    run_claims(CHEAP, asked.out)
    for kind in (OLD, TERMS, JUDGED):
        timed(f"published tunings on {kind}", functools.partial(evaluate_tuning, kind, asked.pages, asked.out))
    for kind in (SLOWED, RECIPE):
        run_claims((one._replace(kinds=(kind,)) for one in EXAMINED), asked.out)
    run_claims(COSTLY[:3], asked.out)
    tunings = tuned.tune(tuned_device(JUDGED, asked.out), asked.out / "tuning")
    timed(f"tuning {tuned.STUDIES[0]} on {JUDGED}", lambda: next(tunings).winner)
    run_claims(COSTLY[3:], asked.out)
    for study in tuned.STUDIES[1:]:
        timed(f"tuning {study} on {JUDGED}", lambda: next(tunings).winner)


if __name__ == "__main__":
    main()
