"""An entry of the leaderboard: a policy, who measured it and when, and what it came to; measuring and verifying one."""

import dataclasses
import datetime
import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import servegym
from servegym.baselines import registry
from servegym.errors import ExperimentError, PolicyError
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.scoring.results import Score
from servegym.evaluation.scoring.scoring import score
from servegym.simulator.compilation.digests import text_digest

ENTRIES = Path(__file__).with_name("entries")
PANELS = {"scheduler": ("leaderboard",), "router": ("leaderboard_routers", "session_fleet", "mixed_fleet")}
LIMIT_S = 600.0
# Tolerance of a run's TDG ratio. The same machine gives the same bytes; another machine's mathematical library may
# round differently, and two requests that change places change all that follows.
TOLERANCE = 0.005
SHOWN = ("tdg_ratio", "slo_attainment", "starved", "fairness_by_length")


@dataclasses.dataclass(frozen=True)
class Entry:
    """policy: as `servegym.score` takes it; a file lies beside the entry. code: digest of its source, and of all that
    it reaches. score, low, high: as `Score`, relative to `relative_to`. figures: means over the panel's scenarios.
    tdg_ratios: of each run, in the order of the panel's cells and their seeds, rounded.
    """

    policy: str
    kind: str
    who: str
    when: str
    version: str
    code: str
    panel: str
    relative_to: str
    score: float
    low: float
    high: float
    figures: dict[str, float]
    tdg_ratios: list[float]

    @property
    def name(self) -> str:
        """Of its file: kind and policy, and the panel in between unless it is the first of its kind."""
        where = "" if self.panel == PANELS[self.kind][0] else f"{self.panel}-"
        return f"{self.kind}-{where}{re.sub('[^a-zA-Z0-9.]+', '-', self.policy.removesuffix('.py')).strip('-')}"

    @property
    def path(self) -> Path:
        return ENTRIES / f"{self.name}.json"

    def write(self) -> Path:
        text = json.dumps(dataclasses.asdict(self), indent=1)
        text = re.sub(r"\n  (-?[0-9])", r" \1", text).replace("\n ]", "]")  # the list of runs on a line
        self.path.write_text(text + "\n", encoding="utf-8")
        return self.path


def read_entry(name: str | Path) -> Entry:
    """An entry by the name of its file, or its path. Raises ExperimentError for what is none."""
    path = Path(name) if str(name).endswith(".json") else ENTRIES / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in ENTRIES.glob("*.json")))
        raise ExperimentError(f"there is no entry {name}; there are {known or 'none'}")
    try:
        return Entry(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ExperimentError(f"{path.name} is no entry of the leaderboard: {error}") from None


def entries() -> list[Entry]:
    """All there are, the best first."""
    return sorted(map(read_entry, sorted(ENTRIES.glob("*.json"))), key=lambda entry: (-entry.score, entry.name))


def panels_of(kind: str) -> tuple[str, ...]:
    """The panels of a kind of policy. Raises ExperimentError for an unknown kind."""
    if kind not in PANELS:
        raise ExperimentError(f"kind {kind!r}; there are {' and '.join(PANELS)}")
    return PANELS[kind]


def measure(policy: str, kind: str, who: str, panel: str) -> Entry:
    """A new entry for a policy by name, or for a file that lies among the entries. Raises as `servegym.score`, and
    ExperimentError for an unknown kind or a panel of another kind.
    """
    if panel not in panels_of(kind):
        raise ExperimentError(f"panel {panel!r}; for a {kind} there are {', '.join(panels_of(kind))}")
    found = _scored(policy, kind, panel)
    return Entry(
        policy, kind, who, datetime.date.today().isoformat(), servegym.__version__, code_of(policy, kind),
        found.panel, found.relative_to,
        round(found.combined_score, 6), round(found.low, 6), round(found.high, 6),
        {name: round(found.metrics[name], 6) for name in (*SHOWN, *loads_in(found.metrics)) if name in found.metrics},
        [round(run["tdg_ratio"], 4) for run in in_order(found)],
    )  # fmt: skip


def code_of(policy: str, kind: str) -> str:
    """Digest of a policy's present source. If it differs from the entry's, the entry should be verified."""
    if policy.endswith(".py"):
        return hashlib.sha256((ENTRIES / policy).read_bytes()).hexdigest()[:16]
    found = {"scheduler": registry.scheduler, "router": registry.router}[kind](policy)
    sources = (text_digest(found.function), text_digest(found.victims), str(found.to_json()))
    return hashlib.sha256(" ".join(map(str, sources)).encode()).hexdigest()[:16]


def is_stale(entry: Entry) -> bool:
    """Whether the entry's policy has another source than when it was measured, or is gone."""
    try:
        return code_of(entry.policy, entry.kind) != entry.code
    except (PolicyError, FileNotFoundError):
        return True


def loads_in(figures: dict[str, float]) -> list[str]:
    """The names of the shares by load, the lightest first."""
    return sorted(
        (name for name in figures if name.startswith("share, load")), key=lambda name: float(name.split()[-1])
    )


def in_order(found: Score) -> list[dict[str, Any]]:
    """Its runs in the order of the panel's cells and their seeds: seeds are numbered through them."""
    return sorted(found.runs, key=lambda run: int(run["seed"]))


def verify(entry: Entry, cells: bool = False) -> int:
    """Run an entry again and compare each run; returns the number compared. cells: only those of the panel's first
    trace and device.

    Raises ExperimentError for a run with another result, PolicyError for a policy that no longer exists.
    """
    if cells:
        whole = load_panel(entry.panel).to_json()
        part = whole | {name: whole[name][:1] for name in ("trace", "device")}
        with tempfile.TemporaryDirectory() as folder:
            panel = Path(folder) / "part.yaml"
            panel.write_text(json.dumps(part), encoding="utf-8")  # JSON is YAML
            found = _scored(entry.policy, entry.kind, panel)
    else:
        found = _scored(entry.policy, entry.kind, entry.panel)
    runs = in_order(found)
    for run, before in zip(runs, entry.tdg_ratios, strict=False):
        if abs(run["tdg_ratio"] - before) > TOLERANCE:
            raise ExperimentError(
                f"{entry.name} does not come out as it says: a TDG ratio of {run['tdg_ratio']:.4f}, not {before:.4f}, "
                f"on {run['trace']}, {run['device']}, load {run['load']:g}, seed {run['seed']}; measure it anew"
            )
    return len(runs)


def _scored(policy: str, kind: str, panel: str | Path) -> Score:
    asked: str | Path = ENTRIES / policy if policy.endswith(".py") else policy
    if isinstance(asked, Path) and not asked.is_file():
        raise PolicyError(f"{policy}: there is no such file among the entries; it should lie beside them")
    return score(asked, panel, kind=kind, least=0.0, limit_s=LIMIT_S)
