"""ProServe's Figure 10 and the estimator's error at both ends of what is known of an Ascend 910B.

    SERVEGYM_DATA=DATA python -m experiments.ascend_interval docs/results/ascend-interval.md

What the ends are, and hypotheses: ascend_interval.md.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.checks import ABOVE_0, Check
from experiments.claims.harness.page import MARKS
from experiments.claims.harness.selection import best, lead
from experiments.claims.harness.settings import FAMILIES, LONG_FAMILIES, SHIFT, Setting, slo_recipe, stand_in
from experiments.claims.proserve_fig10 import BASELINES, CLIENTS, HIGH, METRICS, WHOLE
from experiments.claims.proserve_mape import ABOUT, mape_random
from experiments.profiles.ascend_points import Point, decodes, eager_points, graph_points, omni_points, qwen3_32b_points
from servegym.evaluation.figures import figures
from servegym.evaluation.markdown import header, row
from servegym.latency_models.documents import latency, to_text
from servegym.latency_models.estimators import range_of
from servegym.latency_models.fitting import fit
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import Profile, load_profile, profile_document
from servegym.latency_models.sampling import random_batches
from servegym.simulator.records.types import BATCH_SUMS

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("ascend_interval_reading.md")  # written after the run
POINTS = Path(__file__).parent / "profiles" / "ascend_qwen25_7b.csv"
DEVICE = "ascend910b-qwen3-8b"
FAST_FACTOR = 0.89
SLOW_S_PER_REQUEST = 0.2e-3
ENDS = {"fast": (FAST_FACTOR, 0.0), "shipped": (1.0, 0.0), "slow": (1.0, SLOW_S_PER_REQUEST)}
OUTPUT_TOKENS = 223  # of a request: tokens a second over requests a second, in each run
PROMPT_TOKENS = 218  # the throughput test has 88,257 tokens in all in these 200 requests
BATCHES, SEED = 4000, 3
FIRST_SEED = 21_500


def qwen25_points() -> list[Point]:
    """Decode steps of Qwen2.5-7B, whose shape is that of Qwen2-7B."""
    points = []
    for run in pd.read_csv(POINTS, comment="#").itertuples():
        requests = run.output_tokens_per_s * run.tpot_ms * 1e-3
        name = f"{run.engine}, {requests:.0f} requests"
        batch = decodes(requests, PROMPT_TOKENS + OUTPUT_TOKENS / 2)
        points.append(Point(name, batch, np.ones(1), run.itl_ms * 1e-3))
    return points


def points_of(device: str) -> dict[str, list[Point]]:
    """What was measured that says something of a profile, by source."""
    step, wave = graph_points()
    return {
        "ascend910b-qwen3-8b": {
            "the decode step it was fitted to": [step], "vLLM-Ascend's performance test": [wave],
            "vLLM-Ascend 0.9.1, eager": eager_points()[0],
        },
        "ascend910b-qwen2-7b": {
            "Qwen2.5-7B, vLLM-Ascend 0.7.3 with MindIE Turbo": qwen25_points()[:4],
            "Qwen2.5-7B, vLLM-Ascend 0.7.3": qwen25_points()[4:],
            "Qwen2.5-Omni-7B, vLLM-Ascend 0.11": omni_points(),
        },
        "ascend910b-qwen3-32b-tp4": {"vLLM-Ascend 0.11": qwen3_32b_points()},
    }[device]  # fmt: skip


def evidence() -> Iterator[str]:
    """A row for each source: measured over predicted, lowest to highest."""
    yield from header("profile", "source", "points", "measured, ms", "measured over predicted")
    for device in ("ascend910b-qwen3-8b", "ascend910b-qwen2-7b", "ascend910b-qwen3-32b-tp4"):
        model = load_profile(device).device
        for source, points in points_of(device).items():
            ratios = [point.duration_s / point.predicted_s(model) for point in points]
            times = [1e3 * point.duration_s for point in points]
            yield row(f"`{device}`", source, str(len(points)), span(times, ".1f"), span(ratios, ".2f"))


def span(numbers: list[float], form: str) -> str:
    return " to ".join(dict.fromkeys([format(min(numbers), form), format(max(numbers), form)]))


def slower_requests(model: LatencyModel, s_per_request: float) -> LatencyModel:
    """A roofline with so much more time for each request of a batch: the same function in a form that has such a term.

    Its knots are where computing a batch begins to take longer than reading the weights.
    """
    of = {name: float(value) for name, value in model.coefficients_by_name.items() if isinstance(value, float)}
    flop_per_s, bytes_per_s = (
        of["peak_flop_per_s"] * of["compute_efficiency"],
        of["memory_bytes_per_s"] * of["memory_efficiency"],
    )
    token_s, weights_s = of["token_flop"] / flop_per_s, of["weight_bytes"] / bytes_per_s
    knots = np.array([1.0, weights_s / token_s, 2 * weights_s / token_s])
    base_s = np.maximum(token_s * knots, weights_s) + of["link_bytes"] / of["link_bytes_per_s"] * knots
    same = {
        "a_p": of["pair_flop"] / 2 / flop_per_s,
        "b_p": of["pair_flop"] / (of["peak_flop_per_s"] * of["prefix_efficiency"]),
        "f_p": 0.0, "a_d": of["cache_bytes"] / bytes_per_s, "f_d": 0.0, "t_c": of["t_c"],
        "knots_tokens": knots.tolist(), "base_s": base_s.tolist(),
    }  # fmt: skip
    return LatencyModel.from_values("piecewise", same).plus_per_request(s_per_request)


def at_end(old: Profile, factor: float, s_per_request: float) -> dict[str, Any]:
    """The document of a profile whose batches take so many times as long, and each request so much more."""
    device = old.device.plus_constant(-old.cpu_overhead_s).times(factor)
    if s_per_request > 0:
        device = slower_requests(device, s_per_request)
    batches = random_batches(BATCHES, SEED, range_of(old))
    table = pd.DataFrame({name: batches[name] for name in BATCH_SUMS})
    table["duration_s"] = device.plus_constant(old.cpu_overhead_s).evaluate(batches)
    return profile_document(old.name) | {"device": latency(device), "estimator": latency(fit("linear", table).model)}


def ends_of(device: str, folder: Path) -> dict[str, str]:
    """Files of the profile at each end; the shipped one by its name."""
    files = {}
    for end, (factor, s_per_request) in ENDS.items():
        path = folder / f"{device}-{end}.json"
        if end != "shipped":
            name = {"name": path.stem, "title": f"{device}, {end} end"}
            path.write_text(to_text(at_end(load_profile(device), factor, s_per_request) | name), encoding="utf-8")
        files[end] = device if end == "shipped" else stand_in(str(path), device)
    return files


def runs(ends: dict[str, str], seeds: range, requests: int) -> pd.DataFrame:
    """A row a run: end, family, load, seed, scheduler, figures."""
    both = (*seeds, *(seed + SHIFT for seed in seeds))
    cells = list(itertools.product(ends.items(), FAMILIES, HIGH, both, (WHOLE, *BASELINES)))
    rows = []
    for (end, device), family, load, seed, scheduler in track(cells, "runs", console=Console(stderr=True)):
        setting = Setting(family, device)
        slo, count = f"{slo_recipe(device)},{CLIENTS}", requests // (3 if family in LONG_FAMILIES else 1)
        found = figures(simulation(Cell(*setting, scheduler, load, seed, count, slo=slo)).run())
        keys = {"end": end, "family": family, "load": load, "seed": seed, "scheduler": scheduler}
        rows.append(keys | {column: found[column] for column in METRICS.values()})
    return pd.DataFrame(rows)


def leads(rows: pd.DataFrame) -> Iterator[str]:
    """SlideBatching's lead at each end, and whether the verdicts are one."""
    yield from header("setting", *ENDS, "over the interval")
    for (name, column), family, load in itertools.product(METRICS.items(), FAMILIES, HIGH):
        checks = []
        for end in ENDS:
            here = rows[(rows["end"] == end) & (rows["family"] == family)]
            among = here[here["seed"] < here["seed"].min() + SHIFT]
            other = best(here.drop(among.index), column, load, BASELINES)
            checks.append(Check(other, lead(among, column, load, WHOLE, other), ABOVE_0))
        cells = [f"{check.name} {check.interval.text('+.3f')} {MARKS[check.verdict]}" for check in checks]
        yield row(f"{name}, {family}, load {load:g}", *cells, joined(checks))


def mapes(ends: dict[str, str], seeds: range) -> Iterator[str]:
    yield from header("", *ENDS, "over the interval")
    checks = [
        Check(end, np.array([mape_random(device, seed) for seed in seeds]), ABOUT) for end, device in ends.items()
    ]
    cells = [f"{check.interval.text('.2f')} {MARKS[check.verdict]}" for check in checks]
    yield row("MAPE of the estimator on held-out batches, %", *cells, joined(checks))


def joined(checks: list[Check]) -> str:
    verdicts = {check.verdict for check in checks}
    return verdicts.pop() if len(verdicts) == 1 else "**undecided**"


def main() -> None:
    asked = arguments.parse(__doc__, device=DEVICE, seeds=3, requests=1000)
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    with tempfile.TemporaryDirectory() as folder:
        ends = ends_of(asked.device, Path(folder))
        lines = [
            "# Ascend 910B: what its profiles rest on, and verdicts over that interval\n",
            f"Written by `SERVEGYM_DATA=DATA python -m experiments.ascend_interval docs/results/ascend-interval.md`: "
            f"`{asked.device}`, {asked.requests} requests (a third of mooncake-conversation), "
            f"seeds {seeds[0]} to {seeds[-1]}; as many more choose the baseline. Intervals are 95 %, over seeds.\n",
            WORDS.read_text(encoding="utf-8"),
            "## Evidence\n", *evidence(),
            "\n## SlideBatching's lead over the best of all seven baselines of proserve-fig10\n",
            *leads(runs(ends, seeds, asked.requests)),
            "\n## Estimator\n", *mapes(ends, seeds),
        ]  # fmt: skip
    lines += ["\n## Reading (written after the run)\n", READING.read_text(encoding="utf-8").rstrip()]
    asked.page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
