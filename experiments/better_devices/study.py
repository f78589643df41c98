"""Do verdicts and tunings change on devices that measured runs say more about? Hypothesis: better_devices.md.

    SERVEGYM_DATA=DATA python -m servegym.experiments.better_devices.study

runs what is planned, the cheapest first, and keeps each run: after Ctrl-C the same command goes on. Then

    SERVEGYM_DATA=DATA python -m servegym.experiments.better_devices.page docs/results/better-devices.md
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

from servegym.experiments.better_devices.devices import write
from servegym.experiments.better_devices.plan import PLAN, Planned
from servegym.experiments.claims.harness.claim import Claim, find_claims
from servegym.experiments.claims.harness.settings import FULL
from servegym.experiments.claims.harness.study import Study

OUT = Path("results") / "better-devices"


def moved(planned: Planned, kind: str, out: Path) -> Claim:
    """The claim on a stand-in, in the families planned."""
    (claim,) = find_claims([planned.claim])
    families = tuple(family for family in claim.sized(FULL).families if family != planned.without)
    device = str(write(planned.old, kind, out / "devices"))
    return dataclasses.replace(claim.on(device, planned.old), families=families)


def study_of(planned: Planned, kind: str, out: Path) -> Study:
    return Study(moved(planned, kind, out), FULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="where runs are kept and found again")
    out = parser.parse_args().out
    for planned in PLAN:
        for kind in planned.kinds:
            began_s = time.process_time()
            outcome = study_of(planned, kind, out).run(out, lambda done, cells: None)
            took_s = time.process_time() - began_s
            print(f"{planned.claim} on {kind} of {planned.old}: {outcome.counts}, {took_s:.0f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
