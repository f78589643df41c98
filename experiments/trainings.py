"""What the trainings that ship give, each run to the end of its budget: a page and a picture of their validations.

Hypothesis, written before the runs: a training's best policy is ahead of its base in validation, by an interval that
is wholly above 0. Refuted by an interval that holds 0, or by the base being the best (a training then gives the base).

servegym train NAME --out results/train/NAME      (for each of `tuners/configs/`)
python -m experiments.trainings results/train docs/results/trainings.md
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from servegym.evaluation.intervals import Interval
from servegym.evaluation.markdown import narrow_header, row

DOTS_PER_INCH = 150
HEADING = Path(__file__).with_name("trainings.md")


@dataclasses.dataclass(frozen=True)
class Training:
    """A training that has ended: its configuration, its summary and its validations, oldest first."""

    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    versions: Mapping[str, str]
    curve: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        return str(self.summary["training"])

    @property
    def best(self) -> Mapping[str, Any]:
        return [row for row in self.curve if row["is_best"]][-1]

    @property
    def learned(self) -> bool:
        """Whether the hypothesis holds."""
        return self.best["steps"] > 0 and self.best["difference"] - self.best["half_width"] > 0


def read(folder: Path) -> Training:
    """The training in a folder of `servegym train`. Raises ValueError where it was ended before its budget."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    summary, versions = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("summary", "versions"))
    curve = [json.loads(line) for line in (folder / "curve.jsonl").read_text("utf-8").splitlines()]
    steps = config["budget"]["steps"]
    if steps is None or summary["steps"] < steps:
        raise ValueError(
            f"{folder}: ended after {summary['steps']} steps; its budget should be run to the end ({steps})"
        )
    return Training(config, summary, versions, curve)


def page(trainings: Sequence[Training], picture: Path) -> str:
    """The page in Markdown. picture: its path from the page."""
    versions = trainings[0].versions
    learned = [one.name for one in trainings if one.learned]
    verdict = f"{len(learned)} of {len(trainings)} learn something" + (f" ({', '.join(learned)})." if learned else ".")
    lines = [
        HEADING.read_text(encoding="utf-8"),
        f"**Verdict**: {verdict}\n",
        "With " + ", ".join(f"{name} {versions[name]}" for name in versions if name not in ("machine", "cores"))
        + f"; {versions['cores']} cores.\n",
        f"![Validation of each training against its base]({picture})\n",
        "Difference of the TDG ratio to the base in validation, and its 95 % interval; 0 steps: the base. Attainment, "
        "wait: differences of SLO attainment and of the p99 of the time to a first token, s, of the best. Minutes: by "
        "the clock, and of processors.\n",
        *narrow_header(
            "training", "base", "its TDG ratio", "steps", "minutes", "of processors", "best: after steps", "difference",
            "attainment", "wait, s", "at the end", "learns",
        ),
    ]  # fmt: skip
    for one in trainings:
        said = one.summary
        lines.append(row(
            f"`{one.name}`", f"`{said['base']}`", f"{one.curve[0]['base']:.4f}", f"{said['steps']:,}",
            f"{said['minutes']:.1f}", f"{said['cpu_minutes']:.1f}", f"{one.best['steps']:,}", difference(one.best),
            f"{one.best['attainment_difference']:+.3f}", f"{one.best['wait_difference_s']:+.1f}",
            difference(one.curve[-1]), "yes" if one.learned else "**no**",
        ))  # fmt: skip
    return "\n".join(lines) + "\n"


def difference(row: Mapping[str, Any]) -> str:
    return Interval.about(row["difference"], row["half_width"]).text("+.4f")


def draw(trainings: Sequence[Training], path: Path) -> None:
    """A panel a training: difference to the base against steps, with its interval."""
    columns = min(3, len(trainings))
    rows = -(-len(trainings) // columns)
    figure = Figure(figsize=(11 * columns / 3, 2.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, one in zip(grid, trainings, strict=False):
        steps = [row["steps"] / 1e6 for row in one.curve]
        axes.errorbar(
            steps, [row["difference"] for row in one.curve], [row["half_width"] for row in one.curve],
            marker="o", markersize=4, linewidth=1.2, capsize=2, color="black",
        )  # fmt: skip
        axes.axhline(0, color="0.5", linewidth=0.8, linestyle="--")
        axes.set_title(one.name, fontsize=10)
        axes.set_xlabel("million steps")
        axes.set_ylabel("TDG ratio less the base's")
    for axes in grid[len(trainings) :]:
        axes.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def main(folder: Path, path: Path) -> None:
    trainings = [read(one) for one in sorted(folder.iterdir()) if one.is_dir()]
    if not trainings:
        raise ValueError(f"{folder}: no trainings; there should be a folder of `servegym train` for each")
    picture = Path("images") / f"{path.stem}.png"
    draw(trainings, path.parent.parent / picture)
    path.write_text(page(trainings, Path("..") / picture), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
