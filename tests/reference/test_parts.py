"""Latency models, bisection and running statistics."""

import random

from .engines import Engine
from .latency import Linear, Piecewise
from .packer import largest
from .requests import Request
from .scenes import SECONDS, row
from .schedulers.vllm import VllmV1
from .simulator import Simulation


def test_bisection_finds_what_plain_search_finds():
    rng = random.Random(1)
    latencies = [
        Linear(1e-6, 1e-7, 1e-3, 1e-5, 1e-3, 1e-2),
        Piecewise((1, 16, 64), (0.01, 0.011, 0.1), 1e-6, 1e-7, 1e-3),
    ]
    for latency in latencies:
        for _ in range(200):
            cached, most, budget_s = rng.randrange(500), rng.randrange(300), rng.random() / 2

            def fits(c: int, latency=latency, cached=cached, budget_s=budget_s) -> bool:
                return latency.batch([(c, cached, False)]) <= budget_s

            plain = next((c for c in range(most, 0, -1) if fits(c)), 0)
            assert largest(most, fits) == plain


def test_running_statistics():
    # Client 7 has r0 and r1 of applications 0 and 1; client 8 has r2 of application 1. 8 blocks as in test_time's run
    # with an eviction: at 10 r0 and r1 have two tokens each, r1 is evicted and comes back at 14.
    rows = [
        row(3, 4, client=7, application=0),
        row(3, 3, client=7, application=1),
        row(2, 2, arrival_s=18.0, client=8, application=1),
    ]

    def at(until_s: float) -> tuple[dict[int, tuple], dict[int, tuple]]:
        engine = Engine(0, 1, 8, 0)
        everyone = [Request(index=i, **values) for i, values in enumerate(rows)]
        Simulation(everyone, [engine], VllmV1(), SECONDS, SECONDS).run(until_s)
        return tuple(
            {
                key: (
                    group.admitted_prompt_tokens, group.num_output_tokens, group.finished, group.mean_output_tokens,
                    group.squared_deviations,
                )
                for key, group in groups.items()
            }
            for groups in (engine.by_client, engine.by_application)
        )  # fmt: skip

    assert at(0) == ({7: (6, 0, 0, 0, 0)}, {0: (3, 0, 0, 0, 0), 1: (3, 0, 0, 0, 0)})
    assert at(14) == ({7: (6, 6, 1, 4, 0)}, {0: (3, 4, 1, 4, 0), 1: (3, 2, 0, 0, 0)})
    # r1 comes back without being counted again, and ends at 20; r2 is admitted there and ends at 25.
    by_client, by_application = at(25)
    assert by_client == {7: (6, 7, 2, 3.5, 0.5), 8: (2, 2, 1, 2, 0)}
    assert by_application == {0: (3, 4, 1, 4, 0), 1: (5, 5, 2, 2.5, 0.5)}
