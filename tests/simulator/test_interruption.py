"""Ctrl-C ends a run that is under way, in threads too."""

import _thread
import threading
import time

import pytest

from servegym.baselines.registry import scheduler
from servegym.evaluation.running import ThreadRunner
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs import loop
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

TOKENS, REQUESTS = (300, 1) if JIT_DISABLED else (2**24, 100)  # many seconds
DEVICE = linear(t_c=1e-3)


def long_run(tokens: int = TOKENS) -> Simulation:
    deployment = Deployment(DEVICE, DEVICE, 2**31 - 1, block_tokens=1)
    workload = requests(prompt_tokens=[1] * REQUESTS, output_tokens=tokens)
    simulation = Simulation(Scenario(workload, deployment, scheduler("edf")))
    _ = simulation.loop.entry  # compiled before the clock starts
    return simulation


@pytest.mark.skipif(JIT_DISABLED, reason="plain Python can be interrupted anywhere")
def test_a_run_ends_within_a_second_of_ctrl_c():
    simulation = long_run()
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        simulation.run()
    assert 0.2 < time.monotonic() - begin_s < 4  # within 0.4 s, where no other process takes the processor
    assert simulation.arrays.status[0].now_s > 0


@pytest.mark.skipif(JIT_DISABLED, reason="plain Python can be interrupted anywhere")
def test_runs_in_threads_end_when_nothing_waits_for_them():
    simulations = [long_run() for _ in range(2)]

    def work(i: int) -> None:
        if i < len(simulations):
            simulations[i].run()

    done = ThreadRunner(3).run(work, range(3))
    next(done)
    begin_s = time.monotonic()
    done.close()
    assert time.monotonic() - begin_s < 4
    assert all(simulation.arrays.status[0].now_s > 0 for simulation in simulations)


@pytest.mark.slow
@pytest.mark.nojit
def test_a_run_that_returns_now_and_then_is_the_same(monkeypatch):
    if JIT_DISABLED:
        whole = long_run().run()
        monkeypatch.setattr(loop, "VISITS_A_CALL", 1)
        tokens = TOKENS
    else:
        whole, tokens = long_run(100_000).run(), 100_000
        assert tokens * loop.VISITS_AN_INSTANT > loop.VISITS_A_CALL
    simulation = long_run(tokens)
    while simulation.step():
        pass
    assert simulation.result().summary["span_s"] == whole.summary["span_s"]
    assert simulation.arrays.engines[0].iterations == whole.arrays.engines[0].iterations == tokens
