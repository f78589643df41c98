"""An evaluation: policies of one kind on every cell of a panel, each cell with seeds of its own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from servegym.baselines.artifact import Artifact, load_artifact
from servegym.errors import ExperimentError
from servegym.evaluation.candidates import Candidate, find_candidates
from servegym.evaluation.comparing import run_comparison
from servegym.evaluation.identity import code_digests, document_digest, figures_digests, parameters_of, versions
from servegym.evaluation.measures import Measure, check_rank, ranked_by
from servegym.evaluation.panels import provenance
from servegym.evaluation.panels.panel import FIRST_SEED, Panel
from servegym.evaluation.panels.part import Part, notes_of, parts_of
from servegym.evaluation.panels.provenance import ProvenanceError, TrainedOn
from servegym.evaluation.panels.sets import SET, find_set
from servegym.evaluation.repeats import ONE, SAME, times_of
from servegym.evaluation.running import Progress, Runner
from servegym.latency_models.profile import Profile
from servegym.scenarios.building import workload_of
from servegym.scenarios.fleets import title_of
from servegym.scenarios.values import load_title
from servegym.simulator.policies.policy import Policy

KINDS = ("scheduler", "router", "scaler")
Found = TypeVar("Found", bound=Sized)  # of a part: its runs, its bounds
RUNS_FOLDER = "runs"
TRAINED_ON = (
    '"trained_on": {"traces": ["azure-conv"], "devices": ["a100-llama3-8b"], "loads": [0.7, 1.4], '
    '"seeds": [{"first": 0, "last": 999}]}'
)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What is judged, on what.

    panel: the cells; it also names the policies of the other two kinds. kind: one of `KINDS`; or `SET`, for policies of
        several kinds that are judged together.
    policies: "name", "name:key=value,..." or "learned:PATH" (of kind `SET`: as `find_set` takes them), the first of
        which is the baseline unless `baseline` names another (as one of `policies`, or by its label).
    allow_seen: cells that a learned policy was trained on are marked instead of refused.
    rank_by: the measure that says which is best (`RANKS`); runs do not depend on it.

    Raises ExperimentError for fewer than two policies, two that are the same, or a baseline that is not among them;
    ProvenanceError for a cell that a learned policy has seen, or where nothing says whether it has; PolicyError,
    ProfileError and WorkloadError for names there are not.
    """

    panel: Panel
    policies: tuple[str, ...]
    kind: str = "scheduler"
    baseline: str | None = None
    allow_seen: bool = False
    rank_by: str = "tdg"

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, SET):
            raise ExperimentError(f"kind {self.kind!r}; policies are of kind {', '.join(KINDS)}, or {SET}")
        check_rank(self.rank_by)
        if len(self.policies) < 2:
            raise ExperimentError(f"an evaluation compares policies with a baseline; name two {self.kind}s or more")
        if self.kind not in ("scheduler", SET) and self.panel.spec.fleet.total == 1:
            raise ExperimentError(f"{self.kind}s are judged where there are several engines; say --engines, or a panel")
        _ = self.baseline_label
        self._check_names()
        if not self.allow_seen:
            self._check_held_out()

    @functools.cached_property
    def candidates(self) -> dict[str, Candidate]:
        """The judged candidates by label, in the order in which they were named."""
        stems = [path.stem for path in map(provenance.artifact_path, self.policies) if path is not None]
        repeated = [stem for stem in stems if stems.count(stem) > 1]
        if repeated:
            raise ExperimentError(f"two learned policies are named {repeated[0]}, after their files; rename one file")
        if self.kind == SET:
            return self._sets()
        named = {kind: (self.panel.spec[kind],) for kind in KINDS} | {self.kind: self.policies}
        scalers = [text for text in named["scaler"] if text is not None]
        found = find_candidates(named["scheduler"], named["router"], scalers)
        return {judged(candidate, self.kind).label: candidate for candidate in found.values()}

    def _sets(self) -> dict[str, Candidate]:
        sets = [find_set(text, {kind: self.panel.spec[kind] for kind in KINDS}) for text in self.policies]
        if len(dict(sets)) < len(sets):
            raise ExperimentError(f"two of {', '.join(label for label, _ in sets)} have the same name")
        first = sets[0][1]
        differ = any((one.router, one.scaler) != (first.router, first.scaler) for _, one in sets)
        if differ and self.panel.spec.fleet.total == 1:
            raise ExperimentError("routers and scalers are judged where there are several engines; say --engines")
        return dict(sets)

    @functools.cached_property
    def text_of(self) -> dict[str, str]:
        """The text that each policy was named by, by its label."""
        return dict(zip(self.candidates, self.policies, strict=True))

    @functools.cached_property
    def baseline_label(self) -> str:
        if self.baseline is None:
            return next(iter(self.candidates))
        for label, text in self.text_of.items():
            if self.baseline in (label, text):
                return label
        raise ExperimentError(f"baseline {self.baseline!r} is not judged; judged are {', '.join(self.candidates)}")

    @functools.cached_property
    def learned(self) -> dict[str, Path]:
        """The file of each policy that is named by one, learned or tuned, by its label."""
        paths = {label: provenance.artifact_path(text) for label, text in self.text_of.items()}
        return {label: path for label, path in paths.items() if path is not None}

    @functools.cached_property
    def artifacts(self) -> dict[str, Artifact]:
        """The file of each learned policy, by label."""
        return {label: load_artifact(path) for label, path in self.learned.items()}

    @functools.cached_property
    def trained_on(self) -> dict[str, TrainedOn | None]:
        """The training cases of each learned policy, by label; None if they are not known."""
        return {
            label: provenance.trained_on(self.artifacts[label].provenance, path) for label, path in self.learned.items()
        }

    @functools.cached_property
    def profiles(self) -> list[Profile]:
        """All devices, those of every pool of a fleet."""
        return list({profile.name: profile for part in self.parts for profile in part.profiles}.values())

    @functools.cached_property
    def parts(self) -> list[Part]:
        """One for each trace and device, in the order of the panel."""
        spec = self.panel.spec
        if self.kind != SET:
            spec = dataclasses.replace(spec, policies=dataclasses.replace(spec.policies, **{self.kind: self.policies}))
        return parts_of(self.panel, spec, self.candidates)

    def novelty(self, label: str, part: Part, load: float) -> str:
        """What is new to a policy in a cell (`TrainedOn.novelty`); empty for a policy without training."""
        if label not in self.learned:
            return ""
        seen = self.trained_on[label]
        if seen is None:
            return provenance.UNKNOWN
        first = part.first_seed + part.loads.index(load) * part.seeds
        devices = [profile.name for profile in part.profiles]
        return seen.novelty(part.trace, devices, range(first, first + part.seeds))

    def _check_names(self) -> None:
        """Names of devices, families, recipes and arrivals, before anything is run or written. Files are read later."""
        for part in self.parts:
            if part.gain.name != "tdg":
                raise ExperimentError(f"evaluate is of TDG; the gain is {part.gain.name}, which compare takes")
            for candidate in self.candidates.values():
                _ = part.deployment_of(candidate)
            if not Path(part.trace).is_file():
                workload_of(part.spec, 0, rate_per_s=1.0, requests=1)

    def _check_held_out(self) -> None:
        for label, path in self.learned.items():
            for part in self.parts:
                for load in part.loads:
                    self._check_cell(label, path, part, load)

    def _check_cell(self, label: str, path: Path, part: Part, load: float) -> None:
        found = self.novelty(label, part, load)
        if found == provenance.UNKNOWN:
            raise ProvenanceError(
                f"{path}: provenance has no trained_on, so nothing says which cases are new to it; say there "
                f"{TRAINED_ON}, as servegym.export_sb3 and export_module write it, or with --allow-seen they are "
                "marked as unknown"
            )
        if found == provenance.SEEN:
            raise ProvenanceError(
                f"{label} was trained on {part.trace_name} with seeds of this case, load {load_title(load)}: it is not "
                f"held out; take other traces, or seeds of {FIRST_SEED:,} and above, or mark it with --allow-seen"
            )

    def draw(self, progress: Progress) -> None:
        """Draw the requests of all runs, which `runs` and `run_evaluation` need; progress: of the parts."""
        for done, part in enumerate(self.parts):
            progress(done, len(self.parts))
            _ = part.workloads
        progress(len(self.parts), len(self.parts))

    @property
    def rank(self) -> Measure:
        return ranked_by(self.rank_by, ())

    @property
    def runs(self) -> int:
        return sum(len(part.cells) for part in self.parts)

    @property
    def over(self) -> str:
        """Text for what intervals are over."""
        return ", ".join(dict.fromkeys(part.repeats.over for part in self.parts))

    @property
    def has_intervals(self) -> bool:
        return any(part.repeats.over not in (SAME, ONE) for part in self.parts)

    @property
    def notes(self) -> list[str]:
        """Notes: repairs to traces, and limits of the intervals."""
        return notes_of(self.parts)

    def check_repeats(self) -> None:
        """Raise ExperimentError if a cell has fewer runs than others, unless its run is the same for every seed."""
        for part in self.parts:
            if 1 < part.repeats.runs < self.panel.seeds:
                raise ExperimentError(
                    f"{part.trace_name} has room for {part.repeats.runs} windows of {self.panel.requests} requests "
                    f"that do not overlap, and the panel has {self.panel.seeds} seeds: take fewer seeds, shorter runs "
                    "(--requests), or --resample"
                )

    @property
    def title(self) -> str:
        """A line that describes the evaluation."""
        panel, differ = self.panel, len(self.parts[0].profiles) > 1
        what = [
            f"{len(numbers)} {name}{'s' * (len(numbers) > 1)}"
            for name, numbers in (
                ("trace", panel.traces),
                ("fleet" if differ else "device", panel.devices),
                ("load", panel.loads),
            )
        ]
        judged_ones = f"{self.kind}s{' of policies' * (self.kind == SET)}"
        engines, total = title_of(self.parts[0].spec), panel.spec.fleet.total
        counted = engines.partition(" x ")[0] if engines.count(" x ") == 1 else total  # of several devices: in all
        return (
            f"{len(self.candidates)} {judged_ones} on panel {panel.name}: "
            f"{times_of((part.repeats for part in self.parts), ' x '.join(what))}, {panel.requests} requests a run, "
            f"SLOs {panel.slo}" + (f", {counted} engines" if total > 1 else "") + (f": {engines}" if differ else "")
        )

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What is judged on what, in short; each part's ledger has all that its results depend on."""
        judges = [policy for candidate in self.candidates.values() for policy in candidate.policies]
        return {
            "panel": self.panel.to_json(),
            "kind": self.kind,
            "policies": {label: judged_json(one, self.kind) for label, one in self.candidates.items()},
            "versions": versions(),
            "code": code_digests(judges, self.parts[0].deployment),
            "parameters": parameters_of(judges, self.parts[0].deployment),
            "figures": figures_digests(self.parts[0].gain),
        }

    @property
    def default_directory(self) -> Path:
        """A folder of its own for each identity, so that the same evaluation finds its runs again."""
        return Path("results") / f"evaluate-{self.panel.name}-{document_digest(self.identity)}"


def judged(candidate: Candidate, kind: str) -> Policy:
    policy = getattr(candidate, kind)
    assert policy is not None
    return policy


def judged_policies(candidate: Candidate, artifact: Artifact, kind: str) -> dict[str, Policy]:
    """The policies of an artifact that are judged, by role."""
    if kind == SET:
        return {role: policy for role, policy in candidate.roles.items() if role in artifact.policies}
    return {kind: judged(candidate, kind)}


def judged_json(candidate: Candidate, kind: str) -> dict[str, Any]:
    """What is judged of a candidate, and the sources of it."""
    if kind == SET:
        return {role: policy.to_json() | {"source": policy.source} for role, policy in candidate.roles.items()}
    policy = judged(candidate, kind)
    return policy.to_json() | {"source": policy.source}


def run_evaluation(
    evaluation: Evaluation,
    directory: str | Path,
    progress: Progress = lambda done, runs: None,
    *,
    runner: Runner | None = None,
    fresh: bool = False,
) -> pd.DataFrame:
    """Run missing runs and return one row a run, in the order of the parts and their cells.

    A row has trace, device, policy, load, seed and the columns of `run_comparison`. Arguments, errors and what an
    interrupt leaves as there; each part has its own ledger in a folder of `directory`.
    """
    evaluation.check_repeats()

    def run(part: Part, progress: Progress) -> pd.DataFrame:
        rows = run_comparison(part, part_directory(Path(directory), part), progress, runner=runner, fresh=fresh)
        rows = rows.rename(columns={"scheduler": "policy"})
        rows.insert(0, "trace", part.trace_name)
        rows.insert(1, "device", part.profile.name)
        return rows

    return pd.concat(of_parts(evaluation.parts, run, progress, evaluation.runs), ignore_index=True)


def of_parts(
    parts: Iterable[Part], run: Callable[[Part, Progress], Found], progress: Progress, in_all: int
) -> list[Found]:
    """What `run` returns of each part, one after the other; it reports its progress, which counts on over the parts."""
    found: list[Found] = []
    for part in parts:
        before = sum(map(len, found))
        found.append(run(part, lambda done, _, before=before: progress(before + done, in_all)))  # type: ignore[misc]
    return found


def part_directory(directory: Path, part: Part) -> Path:
    return directory / RUNS_FOLDER / f"{Path(part.trace).stem}-{part.profile.name}"
