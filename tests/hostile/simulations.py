"""Random simulations, in numbers: `python -m tests.hostile.simulations [--number 20000] [--seed 0] [--jobs 2]`.

Of each run: it ends, time goes forward, tokens are conserved, KV memory never exceeds its capacity, no request is lost
or in two places, the gain is that of the times of emission and no more than the ideal one, and again it is the same to
the byte. Runs are drawn in chunks, each from a seed of its own; `--chunk N` runs one again, in this process.
"""

import argparse
import collections
import multiprocessing
import re
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.queues import Queue
from typing import Any

import hypothesis
import numpy as np

from servegym.baselines.registry import scheduler_names
from servegym.errors import ServegymError
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import INCIDENTS
from servegym.simulator.runs.simulation import Simulation
from tests.hostile.random_runs import runs
from tests.simulator.incident_strategies import RANDOM_SCALER
from tests.simulator.replay import replay
from tests.simulator.replayed_run import Replay
from tests.simulator.test_cluster_properties import assert_blocks_add_up, bytes_of
from tests.simulator.test_episodes import nothing_ignored
from tests.simulator.test_random_incidents import assert_counts_are_those_of, assert_tokens_are_conserved
from tests.simulator.test_sessions import check_front
from tests.strategies import LONGEST_RUN_S

CHUNK = 50  # runs
FIRST = 10  # runs before all others, which compile what those need
LIMIT_S = 300.0  # for one of them, with what its policies compile
LIVELOCK = re.compile(r"under scheduler ([a-z0-9-]+).* requests evict each other")
ENGINES_STAY_AWAY = set(INCIDENTS) - {"return"}


def chunk_of(seed: int, chunk: int, count: int = CHUNK) -> Iterator[str]:
    """How each of a chunk's runs ended: "served", "some unserved", "refused: ...", or "WRONG: ..."."""
    ended: list[str] = []

    @hypothesis.seed(seed * 1_000_003 + chunk)
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(scenario=runs())
    def draw(scenario: Scenario) -> None:
        ended.append(ending(scenario))

    draw()
    yield from ended


def ending(scenario: Scenario) -> str:
    """How this run ended, with all checks."""
    try:
        return run(scenario)
    except ServegymError as error:
        livelock = LIVELOCK.search(str(error))
        if livelock is not None and livelock[1] in scheduler_names():  # a random scheduler may, a shipped one may not
            return f"WRONG: {error}\n    {policies_of(scenario)}"
        return f"refused: {re.sub(r'[0-9][0-9.e+-]*', 'N', str(error))}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"WRONG: {type(error).__name__} at {at.name}: {str(error)[:300] or at.line}\n    {policies_of(scenario)}"


def policies_of(scenario: Scenario) -> str:
    of_pools = [pool.scheduler for pool in scenario.deployment.pools]
    named = [scenario.scheduler, *of_pools, scenario.router, scenario.scaler]
    return ", ".join(policy.label for policy in named if policy is not None)


def run(scenario: Scenario) -> str:
    simulation = Simulation(scenario, record_timeline=True)
    with nothing_ignored():
        simulation.run()
    assert not simulation.failures, simulation.failures[0]
    finished = np.isfinite(simulation.arrays.outcomes["finish_s"])
    if front(scenario):  # the replay knows arrivals in the order of rows only
        if finished.all():
            check_front(simulation)
    else:
        log = replay(simulation)  # each line of the timeline could have happened, and time goes forward
        check(simulation, log)
    check_memory(simulation, finished)
    first = bytes_of(simulation)
    simulation.reset()
    simulation.run()
    assert bytes_of(simulation) == first, "again it is another run"
    if finished.all():
        return "served"
    away = any(incident.kind in ENGINES_STAY_AWAY for incident in scenario.incidents)
    closed = scenario.scaler is not None and scenario.scaler.name == RANDOM_SCALER.name
    assert away or closed, "requests are left, and all engines are there"
    return "some unserved"


def check(simulation: Simulation, log: Replay) -> None:
    scenario, arrays = simulation.scenario, simulation.arrays
    table, outcomes, done = scenario.workload.table, arrays.outcomes, np.array(log.finished)
    assert arrays.status[0].finished == done.sum() == np.isfinite(outcomes["finish_s"]).sum()
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"][done], table["output_tokens"][done])
    for r in np.flatnonzero(done):
        times = log.emission_s[r]
        assert len(times) == table["output_tokens"][r] and (np.diff(times) > 0).all(), "time goes forward"
        assert arrays.requests["arrival_s"][r] <= outcomes["admitted_s"][r] < times[0] <= times[-1]
        assert (outcomes["first_token_s"][r], outcomes["finish_s"][r]) == (times[0], times[-1])
    if len(scenario.deployment.pools) > 1 or scenario.router is not None:
        assert_tokens_are_conserved(log, scenario)
        assert_counts_are_those_of(log, simulation)
        assert_blocks_add_up(simulation)
    check_gain(simulation, log)


def front(scenario: Scenario) -> bool:
    """Whether requests come when others have ended."""
    return scenario.workload.turns is not None or bool(scenario.clients or scenario.max_concurrency)


def check_memory(simulation: Simulation, finished: np.ndarray) -> None:
    engines, summary = simulation.arrays.engines, simulation.result().summary
    assert simulation.arrays.status[0].finished == finished.sum()
    assert float(simulation.arrays.status[0].now_s) < LONGEST_RUN_S or finished.all(), "it went on to the end of time"
    assert (engines["totals"]["peak_blocks"] <= engines["total_blocks"]).all()
    if finished.all():
        assert (engines["free_blocks"] == engines["total_blocks"]).all()
        assert (engines["free_host_blocks"] == engines["host_blocks"]).all()
    assert 0 <= summary["gain"] <= summary["ideal_gain"] * (1 + 1e-9)


def check_gain(simulation: Simulation, log: Replay) -> None:
    """The definition of TDG, token by token, on the times at which tokens came."""
    scenario = simulation.scenario
    table, arrival_s = scenario.workload.table, simulation.arrays.requests["arrival_s"]
    first, decode = scenario.gain.token_gains(table)
    total = ideal = 0.0
    for r, times in enumerate(log.emission_s):
        worth = np.full(int(table["output_tokens"][r]), decode[r])
        worth[0] = first[r]
        due_s = arrival_s[r] + table["ttft_slo_s"][r] + np.arange(len(times)) * table["tpot_slo_s"][r]
        if np.isfinite(table["ttlt_slo_s"][r]):
            due_s = np.full(len(times), arrival_s[r] + table["ttlt_slo_s"][r])
        total += float(worth[: len(times)][np.array(times) < due_s].sum())
        ideal += float(worth.sum())
    summary = simulation.result().summary
    assert abs(summary["gain"] - total) <= 1e-9 * max(ideal, 1.0)
    assert 0 <= summary["gain"] <= ideal * (1 + 1e-9)


def work(seed: int, chunks: "Queue[int]", told: "Queue[tuple[int, list[str]]]") -> None:
    while (chunk := chunks.get()) >= 0:
        told.put((chunk, list(chunk_of(seed, chunk))))


def all_chunks(seed: int, count: int, jobs: int) -> Iterator[tuple[int, list[str]]]:
    """Chunks as they end, each in a process that is killed if it takes too long: a run that never ends hangs it."""
    context = multiprocessing.get_context("spawn")
    waiting, running = list(range(count))[::-1], {}
    told: Any = context.Queue()
    idle: list[Any] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            chunks, process = idle.pop() if idle else started(context, seed, told)
            chunk = waiting.pop()
            chunks.put(chunk)
            running[chunk] = (chunks, process, time.monotonic())
        try:
            chunk, ended = told.get(timeout=5.0)
            idle.append(running.pop(chunk)[:2])
            yield chunk, ended
        except multiprocessing.queues.Empty:  # type: ignore[attr-defined]
            for chunk, (_, process, since_s) in list(running.items()):
                if not process.is_alive() or time.monotonic() - since_s > LIMIT_S + CHUNK:
                    process.kill()
                    running.pop(chunk)
                    yield chunk, [f"WRONG: the process {'hangs' if process.exitcode is None else 'died'}"]
    for chunks, _ in idle:
        chunks.put(-1)


def started(context: Any, seed: int, told: Any) -> tuple[Any, Any]:
    chunks = context.Queue()
    process = context.Process(target=work, args=(seed, chunks, told), daemon=True)
    process.start()
    return chunks, process


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.simulations", description=__doc__)
    parser.add_argument("--number", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--chunk", type=int)
    asked = parser.parse_args()
    if asked.chunk is not None:
        found = iter([(asked.chunk, list(chunk_of(asked.seed, asked.chunk)))])
    else:
        list(chunk_of(asked.seed, -1, FIRST))  # compiles the loop: it may take longer than a chunk may
        found = all_chunks(asked.seed, -(-asked.number // CHUNK), asked.jobs)
    counts: collections.Counter[str] = collections.Counter()
    for chunk, ended in found:
        counts.update(one.partition("\n")[0] for one in ended)
        print(f"\r{counts.total():,} runs", end="", file=sys.stderr, flush=True)
        for one in ended:
            if one.startswith("WRONG"):
                print(f"\rchunk {chunk}: {one}", flush=True)
    print(file=sys.stderr)
    for what, count in counts.most_common():
        print(f"{count:7,} {what}")
    return int(any(what.startswith("WRONG") for what in counts))


if __name__ == "__main__":
    sys.exit(main())
