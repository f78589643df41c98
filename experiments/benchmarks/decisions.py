"""What a decision costs with 256 requests running and 1,000 waiting: of policies that learn, beside slide-batching's.

A decision is what a scheduler does before a batch, ranks and limits, without the packing, which is the same for all.
All find the same queue. A compiled loop asks the very function that the event loop asks, each time a nanosecond later,
so that nobody takes it for the last decision again. Policy and slide-batching take turns, and each repetition gives one
ratio of processor times. The networks have random weights: what they say does not matter, but that it is not nothing.
"""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.scheduling import CONTROLS, kind_of, scheduled
from servegym.baselines.observations.scheduling import scheduling_layout
from servegym.baselines.registry import scheduler
from servegym.latency_models.profile import load_profile
from servegym.simulator.batching.ranking import decider_of, rank_queue
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.statuses import QUEUE_FULL
from servegym.simulator.runs.parking import ParkedRun, restore_run
from servegym.simulator.runs.simulation import Simulation

DEVICE, RUNNING, WAITING = "a100-llama3-8b", 256, 1000
REFERENCE = "slide-batching"
MOST_RATIO = 3.0  # a decision may cost so many times slide-batching's
HIDDEN, OUT = (16,), 10  # of the networks; tokens out of requests that run
LATER_S = 1e-9


@compiled(types.void(types.int64, types.int64))
def decide(address, times):
    """Have the scheduler of a parked run rank its queue so many times."""
    run, _, functions = restore_run(address)
    for k in range(times):
        rank_queue(run, decider_of(run, functions, 0), 0, run.status[0].now_s + k * LATER_S)


class Timed:
    """A scheduler before a decision about requests that run and others that wait."""

    def __init__(self, policy: Policy, running: int = RUNNING, waiting: int = WAITING):
        n = running + waiting
        self.simulation = Simulation(Scenario(workload(n), load_profile(DEVICE).deployment(), policy))
        while self.simulation.arrays.queues.shape[1] < n:
            self.simulation.make_room(QUEUE_FULL)
        arrays = self.simulation.arrays
        requests, engine = arrays.requests, arrays.engines[0]
        run = requests[:running]
        run["num_output_tokens"], run["first_token_s"] = OUT, run["arrival_s"] + 0.2
        run["computed_tokens"] = run["prompt_tokens"] + OUT - 1
        run["blocks"] = -(-run["computed_tokens"] // engine["block_tokens"])
        engine["free_blocks"] -= run["blocks"].sum()
        arrays.queues[0][:n], engine["queue_length"] = np.arange(n), n
        arrays.status["now_s"] = requests["arrival_s"].max()
        self.parked = ParkedRun()
        self.parked.park(arrays, self.simulation.router_state, self.simulation.functions)

    def decision_s(self, times: int) -> float:
        """Seconds of processor time of a decision."""
        begin_s = time.thread_time()
        decide.entry(self.parked.address, times)
        return (time.thread_time() - begin_s) / times


def workload(requests: int) -> Workload:
    """Short prompts that came in the last two seconds; a third of those that wait cannot be in time any more."""
    random = np.random.default_rng(0)
    return Workload.from_columns(
        {
            "arrival_s": np.sort(random.uniform(0.0, 2.0, requests)),
            "prompt_tokens": random.integers(100, 400, requests),
            "output_tokens": np.full(requests, 200),
            "ttft_slo_s": random.choice([0.5, 1.0, 3.0], requests),
            "tpot_slo_s": random.choice([0.03, 0.05, 0.1], requests),
            "weight": random.choice([1.0, 2.0], requests),
        }
    )


def learned(slots: int) -> Policy:
    """A network that steers slide-batching, with so many slots."""
    layout = scheduling_layout(slots)
    if slots:
        shape = Shape.shared_by(layout, CONTROLS + 1, kind_of(slots), hidden=HIDDEN, output="tanh")
    else:
        shape = Shape.dense_on(layout, CONTROLS, hidden=HIDDEN, output="tanh")
    return scheduled(scheduler(REFERENCE), Network.random(shape, np.random.default_rng(0)))


def cases() -> Iterator[tuple[str, Policy]]:
    """Names of figures, and policies."""
    yield "expected_gain", scheduler("expected-gain")
    for slots in (0, 16, 32):
        yield f"scheduling_{slots}_slots", learned(slots)


def measure(sizes: Sizes) -> list[Figure]:
    reference = Timed(scheduler(REFERENCE))
    reference.decision_s(1)
    figures = []
    for name, policy in cases():
        timed = Timed(policy)
        timed.decision_s(1)  # compiles, or reads what was compiled
        pairs = [
            (timed.decision_s(sizes.decisions), reference.decision_s(sizes.decisions)) for _ in range(sizes.repetitions)
        ]
        own_s, reference_s = (median(times_s) for times_s in zip(*pairs, strict=True))
        meaning = (
            f"{1e6 * own_s:.0f} us a decision, {RUNNING} running and {WAITING:,} waiting; "
            f"{REFERENCE}: {1e6 * reference_s:.0f}"
        )
        ratios = [own_s / reference_s for own_s, reference_s in pairs]
        figures.append(Figure.of(f"{name}_decision_ratio", ratios, meaning, at_most=MOST_RATIO))
    return figures
