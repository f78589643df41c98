"""ProServe's settings as tuned on Ascend, at both ends of what is known of the device.

    python -m experiments.tuning.ascend_tuned docs/results/ascend-tuned.md

Hypotheses: ascend_tuned.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.ascend_interval import ENDS, ends_of
from experiments.claims.harness.settings import served_by
from servegym.baselines import registry
from servegym.evaluation.intervals import Interval
from servegym.evaluation.markdown import header, row
from servegym.evaluation.panels.panel import Panel
from servegym.tuners.studies.instances import instances_of
from servegym.tuners.studies.objectives import OBJECTIVES
from servegym.tuners.studies.reading import load_tuning
from servegym.tuners.studies.results import paired

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("ascend_tuned_reading.md")  # written after the run
TUNING = "proserve-ascend"
FIGURE = OBJECTIVES["tdg"].figure
ABOVE, BELOW, UNDECIDED = "above", "below", "**undecided**"


class Served(NamedTuple):
    """A scheduler and a router, as `servegym` takes them."""

    scheduler: str
    router: str = "min-load"


def slide(settings: str = "") -> str:
    return f"slide-batching:{settings}steps=ignore"


AS_SHIPPED = Served(slide(), "gorouting")
# By study: the defaults and the winner of docs/results/tuning-proserve-ascend.md.
STUDIES = {
    "engine": (AS_SHIPPED, Served(slide("gamma=6.225,eta=0.05098,"), "gorouting:eta=0.05098")),
    "joint": (
        AS_SHIPPED,
        Served(slide("gamma=6.071,eta=0.05041,"), "gorouting:eta=0.05041,alpha=0.834,lambda=0.616,mu=0.01332"),
    ),
    "exclude-hopeless": (
        Served(slide("hopeless=exclude,"), "gorouting"),
        Served(slide("hopeless=exclude,gamma=2.564,eta=0.04965,"), "gorouting:eta=0.04965"),
    ),
    "qoserve": (
        Served("qoserve:steps=ignore"),
        Served(
            "qoserve:largest_chunk_tokens=641,max_num_batched_tokens=143,safety=1.001,alpha_s_per_token=0.09732,"
            "max_num_seqs=373,steps=ignore"
        ),
    ),
    "sarathi-fcfs": (
        Served("sarathi-fcfs"),
        Served("sarathi-fcfs:max_num_batched_tokens=484,max_num_seqs=289"),
    ),
    "edf": (Served("edf"), Served("edf:max_num_batched_tokens=200,batch_size=168")),
}


def panels_of(ends: list[dict[str, str]], seeds: int, requests: int) -> Iterator[tuple[str, str, Panel]]:
    """(end, which, panel): the tuning's validation and test on the files of an end.

    ends: of each device (`ends_of`). seeds, requests: fewer than the tuning's, for a look; its own otherwise.
    """
    config = load_tuning(TUNING)
    for end in ENDS:
        devices = [served_by(files[end]) for files in ends]
        for which in ("validation", "test"):
            panel: Panel = getattr(config, which)
            yield end, which, panel.replaced({"device": devices, "requests": requests}, seeds=min(seeds, panel.seeds))


def runs(panel: Panel, served: list[Served], title: str) -> dict[Served, pd.DataFrame]:
    """Of each: a row a run, with its trace, device, load and seed, and the figure."""
    import pandas as pd

    instances, found = instances_of(panel), {}
    cells = [(one, index) for one in served for index in range(len(instances))]
    rows: dict[Served, list[dict[str, object]]] = {one: [] for one in served}
    for one, index in track(cells, title, console=Console(stderr=True)):
        policies = {"scheduler": registry.scheduler(one.scheduler), "router": registry.router(one.router)}
        rows[one].append({**instances.all[index]._asdict(), FIGURE: instances.run(index, policies)[FIGURE]})
    for one in served:
        found[one] = pd.DataFrame(rows[one])
    return found


def leads(panel: Panel, title: str) -> dict[str, Interval]:
    """What each study's winner has more than its defaults, in TDG ratio."""
    found = runs(panel, list(dict.fromkeys(one for both in STUDIES.values() for one in both)), title)
    return {name: paired(found[tuned], found[defaults], FIGURE) for name, (defaults, tuned) in STUDIES.items()}


def sign_of(interval: Interval) -> str:
    return ABOVE if interval.low > 0 else BELOW if interval.high < 0 else UNDECIDED


def over_the_interval(intervals: list[Interval]) -> str:
    """The sign at all ends, if it is one."""
    signs = {sign_of(interval) for interval in intervals}
    return signs.pop() if len(signs) == 1 else UNDECIDED


def table(found: dict[str, dict[str, Interval]]) -> Iterator[str]:
    """found: by end and study."""
    yield from header("study", *ENDS, "over the interval")
    for name in STUDIES:
        of_ends = [found[end][name] for end in ENDS]
        yield row(name, *(interval.text("+.4f") for interval in of_ends), over_the_interval(of_ends))


def main() -> None:
    config = load_tuning(TUNING)
    asked = arguments.parse(__doc__, seeds=config.test.seeds, requests=config.test.requests)
    found: dict[str, dict[str, dict[str, Interval]]] = {"validation": {}, "test": {}}
    with tempfile.TemporaryDirectory() as folder:
        ends = [ends_of(device, Path(folder)) for device in config.test.devices]
        for end, which, panel in panels_of(ends, asked.seeds, asked.requests):
            found[which][end] = leads(panel, f"{which}, {end}")
    traces = {which: ", ".join(getattr(config, which).traces) for which in found}
    lines = [
        "# Settings tuned on Ascend, over what is known of the device\n",
        f"Written by `python -m experiments.tuning.ascend_tuned docs/results/ascend-tuned.md`: {asked.requests} "
        f"requests a run, {asked.seeds} seeds a cell, {', '.join(config.test.devices)}. TDG ratio as tuned less that "
        "of the defaults, paired by seed, with 95 % intervals by stratified bootstrap.\n",
        WORDS.read_text(encoding="utf-8"),
        f"## On the tuned traces: {traces['validation']}\n", *table(found["validation"]),
        f"\n## On other traces: {traces['test']}\n", *table(found["test"]),
        "\n## Reading (written after the run)\n", READING.read_text(encoding="utf-8").rstrip(),
    ]  # fmt: skip
    asked.page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
