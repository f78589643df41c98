"""A recommendation: what a recording's traffic is best served by, on each of some devices."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.identity import document_digest
from servegym.evaluation.plan import check_devices, price_per_hour
from servegym.evaluation.recommend.choosing import Chosen, Sized, choose
from servegym.evaluation.recommend.judging import confirmed, curve, judged
from servegym.evaluation.recommend.least_engines import least_engines
from servegym.evaluation.recommend.matching import Match, match
from servegym.evaluation.recommend.recording import Recording, Served, read_recording
from servegym.evaluation.recommend.setups import VLLM, Setup, setups
from servegym.evaluation.recommend.trials import Trials, compile_policies
from servegym.evaluation.recommend.windows import Windows, windows_of
from servegym.evaluation.running import Progress, Runner
from servegym.evaluation.targets import Target
from servegym.latency_models.profile import Profile, load_profile
from servegym.scenarios.building import whole_in
from servegym.scenarios.fleets import title_of
from servegym.scenarios.ranges import listed
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import fixed, plain
from servegym.traces.files import sha256

SLO = "ttft_s=2,tpot_s=0.1"  # where nothing else is asked for


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked.

    recording: a file, or a family of generated requests. spec: the devices, the first of which served the recording;
    SLOs, rate, and how the file is read; its policies and engines are not used, but for pools: that fleet is given, and
    setups serve with it as it is. engines: of the fleet; None: as few as do. schedulers, routers: that are tried
    instead of a list of ours. served: how the recording was served. prices: of an engine-hour, by device.
    disaggregated: whether engines that only prefill or only decode are tried too. spec_file: as commands name it.

    Raises ExperimentError for devices named twice, prices of no device, incidents, and what pools rule out.
    """

    recording: str
    spec: ServingSpec
    target: Target
    engines: int | None = None
    schedulers: tuple[str, ...] = ()
    routers: tuple[str, ...] = ()
    served: Served = dataclasses.field(default_factory=Served)
    prices: Mapping[str, float] = dataclasses.field(default_factory=dict)
    disaggregated: bool = False
    spec_file: str = "FLEET.yaml"

    def __post_init__(self) -> None:
        check_devices(self.devices, self.prices)
        if self.spec.fleet.incidents:
            raise ExperimentError("a recommendation is of a steady fleet; leave its incidents out")
        pools = self.spec.fleet.pools
        if pools and (self.prices or self.disaggregated or self.served.engines not in (1, self.given_engines)):
            raise ExperimentError(
                "the fleet is given by its pools; leave --price, --disaggregated and the engines of --served out"
            )
        if any(pool.scheduler for pool in pools):
            raise ExperimentError("a pool has a scheduler of its own; leave it out, as schedulers are tried")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices; of a fleet of pools, those of the pools."""
        pools = [pool.device or self.spec.fleet.device for pool in self.spec.fleet.pools]
        return tuple(dict.fromkeys(map(plain, pools))) or tuple(map(plain, listed(self.spec.fleet.device)))

    @property
    def given_engines(self) -> int | None:
        """Number of engines of the fleet; None: as few as do."""
        return sum(pool.engines for pool in self.spec.fleet.pools) or self.engines

    @property
    def default(self) -> Setup:
        """The setup that served the recording, or vLLM's defaults."""
        served = self.served
        return Setup(
            VLLM, served.router, served.max_num_batched_tokens, served.max_num_seqs,
            long_prefill_token_threshold=served.long_prefill_token_threshold,
        )  # fmt: skip

    def setups(self, recording: Recording) -> list[Setup]:
        """The setups to try, the default first."""
        return setups(
            self.default,
            schedulers=self.schedulers,
            routers=self.routers,
            has_prefixes=recording.trace.prefix_blocks is not None,
            has_sessions=recording.trace.turns is not None,
            disaggregated=self.disaggregated,
            engines=self.given_engines,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """All that the recommendation depends on."""
        path = Path(self.recording)
        return {
            "recording": sha256(path) if path.is_file() else self.recording, "spec": self.spec.to_json(),
            "target": self.target.text, "served": dataclasses.asdict(self.served), "prices": dict(self.prices),
            "asked": [self.engines, self.schedulers, self.routers, self.disaggregated],
        }  # fmt: skip

    @property
    def default_directory(self) -> Path:
        """A folder of its own for each identity."""
        return Path("results") / f"recommend-{Path(self.recording).name.split('.')[0]}-{document_digest(self.identity)}"

    def read(self) -> Recording:
        demand = self.spec.demand
        return read_recording(
            self.recording, self.served, demand.reading, requests=whole_in(self.spec, "requests"),
            max_prompt_tokens=whole_in(self.spec, "max_prompt_tokens"),
            max_total_tokens=whole_in(self.spec, "max_total_tokens"),
        )  # fmt: skip

    def windows(self, recording: Recording) -> Windows:
        demand = self.spec.demand
        return windows_of(
            recording.trace, fixed("slo", demand.slo), rate_per_s=fixed("rate_per_s", demand.rate_per_s),
            arrivals=fixed("arrivals", demand.arrivals), resample=demand.resample,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class OfDevice:
    """What is best on a device.

    chosen: with as many engines as hold the target in all windows. at_first: what the windows that choose gave.
    table: `judged`, on the other windows. curve: of shares by engines. profile: of the device, with
    what was fitted. least: engines that any scheduler and router need at least; None: not known. price_per_hour: of an
    engine; None: not known. tried: setups. runs: that were simulated.
    """

    device: str
    chosen: Chosen
    at_first: Sized
    table: pd.DataFrame
    curve: pd.DataFrame
    profile: Profile
    least: int | None
    price_per_hour: float | None
    tried: int
    runs: int

    @property
    def file_name(self) -> str:
        """The device as the name of a file: it may be a path, or have a model's."""
        return re.sub(r"[^\w.+-]+", "-", self.profile.name)

    @property
    def best(self) -> pd.Series:
        """The row of the recommended setup."""
        return self.table.iloc[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Recommendation:
    """The best setup of each device, the recommended one first. match: None: the recording has no times."""

    question: Question
    recording: Recording
    windows: Windows
    match: Match | None
    of_devices: tuple[OfDevice, ...]

    @property
    def best(self) -> OfDevice:
        return self.of_devices[0]

    @property
    def name(self) -> str:
        return Path(self.question.recording).name


def recommend(
    question: Question,
    runner: Runner,
    progress: Progress = lambda done, known: None,
    on_match: Callable[[Recording, Match | None], Any] = lambda recording, match: None,
) -> Recommendation:
    """Read the recording, compare it with its simulation where it has times, choose a setup, and judge it.

    progress: called with the runs that are done and the runs known to be needed. on_match: called once, before the
    search. Raises WorkloadError, ProfileError, PolicyError, DeploymentError and ExperimentError.
    """
    profiles = {device: load_profile(device) for device in question.devices}
    recording, pools = question.read(), question.spec.fleet.pools
    windows, tried = question.windows(recording), question.setups(recording)
    found = None
    if pools:
        fleet = title_of(question.spec)
        profiles = {fleet: dataclasses.replace(profiles[question.devices[0]], name=fleet)}
    elif recording.run is not None:
        found = match(recording.run, profiles[question.devices[0]], question.spec.fleet.async_scheduling)
        if found.fitted is not None:
            profiles[question.devices[0]] = found.fitted.within(profiles[question.devices[0]])
    on_match(recording, found)
    of = [
        _of_device(question, device, profile, windows, tried, runner, progress) for device, profile in profiles.items()
    ]
    return Recommendation(question, recording, windows, found, tuple(sorted(of, key=_rank)))


def _of_device(
    question: Question, device: str, profile: Profile, windows: Windows, tried: list[Setup], runner: Runner,
    progress: Progress,
) -> OfDevice:  # fmt: skip
    base, pools = question.spec, question.spec.fleet.pools
    if not pools:
        base = dataclasses.replace(base, fleet=dataclasses.replace(base.fleet, device=profile))
    choosing = Trials(base, profile, windows.to_choose, question.target, runner, progress)
    compile_policies(choosing, tried)
    chosen = choose(choosing, tried, question.given_engines)
    judging = Trials(base, profile, windows.to_judge, question.target, runner, progress)
    at_first, chosen = chosen.best, confirmed(choosing, judging, chosen)
    price, engine = None if pools else price_per_hour(profile, question.prices.get(device)), profile.deployment(1)
    windows_of_both = windows.to_choose + windows.to_judge
    least = [] if pools else [least_engines(window, engine, question.target) for window in windows_of_both]
    table, shares = judged(judging, chosen, price), curve(judging, chosen, is_given=bool(pools))
    known = [number for number in least if number is not None]
    runs = len(choosing.done) + len(judging.done)
    return OfDevice(device, chosen, at_first, table, shares, profile, max(known, default=None), price, len(tried), runs)


def _rank(of: OfDevice) -> tuple[bool, float]:
    """Sort key: setups that hold the target first, then by cost if prices are known."""
    cost = of.best["cost_per_hour"]
    return of.chosen.best.engines is None, float(of.best["engines"] if np.isnan(cost) else cost)
