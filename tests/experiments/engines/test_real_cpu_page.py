"""The page of the real engine: every number in it is one that was measured."""

import dataclasses
import os

import numpy as np
import pytest

from experiments.engines.real_cpu_engine import MODEL, Settings, as_arguments, figures, noise
from experiments.engines.real_cpu_in_process import Driven, by_regime
from experiments.engines.real_cpu_page import page_of
from experiments.engines.real_cpu_server import core_time_s
from experiments.engines.real_cpu_terms import with_server
from servegym.adapters.profiling.design import Batch, Prefill
from servegym.adapters.replay.records import Replayed
from servegym.baselines.registry import scheduler
from servegym.evaluation.measured.runs import read_own
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.workloads import build_workload
from tests.simulator.forming import linear

pytest.importorskip("httpx")
ERROR = {f"{name}_percent": value for name, value in zip(
    ("mape", "decode_mape", "prefill_mape", "mixed_mape", "p95", "max"), (5.1, 4.2, 6.3, 7.4, 15.5, 21.6), strict=True
)}  # fmt: skip


def served(tdg_ratio: float, ttft_s: float) -> dict:
    quantiles = {"p50": ttft_s, "p90": 2 * ttft_s, "p99": 3 * ttft_s}
    return {
        "tdg_ratio": tdg_ratio, "slo_attainment": 0.5, "span_s": 40.0, "ttft_s": quantiles, "tpot_s": quantiles,
        "statuses": {"finished": 79, "failed": 1}, "lateness_s": {"mean": 0.001, "max": 0.012},
        "engine_waited_share": 0.034,
    }  # fmt: skip


BY_REGIME = {
    "decode": {"steps": 1903, "measured_s": 24.0, "modelled_s": 25.2, "mape_percent": 9.87},
    "mixed": {"steps": 99, "measured_s": 15.0, "modelled_s": 14.7, "mape_percent": 6.5},
}
DOCUMENT = {
    "settings": dataclasses.asdict(Settings()),
    "model": dataclasses.asdict(MODEL),
    "facts": {"engine": "vLLM 0.32.0, in process", "dtype": "torch.bfloat16"},
    "machine": {"cpu": "a CPU", "cores": 2},
    "fit": {"linear": ERROR, "piecewise": ERROR},
    "form": "linear",
    "estimator": ERROR,
    "profiled": {"batches": 120, "shortest_s": 0.006, "longest_s": 0.2, "median_spread": 0.021, "undisturbed": 0.98},
    "saturation_per_s": 2.5,
    "server": {"factor": 1.0625, "step_cpu_s": 0.0002, "client_s": 0.0071, "fitted_at_loads": [0.6, 0.9]},
    "runs": [
        {
            "load": 0.5,
            "simulated": served(0.9, 0.2),
            "on_server": served(0.87, 0.24),
            "in_process": [served(0.91, 0.2) | {"by_regime": BY_REGIME}, served(0.91, 0.2)],
            "measured": [served(0.8, 0.25), served(0.9, 0.25)],
        }
    ],
}


def test_the_page_has_the_errors_of_the_simulation():
    page = page_of(DOCUMENT)
    assert "| 0.5 | TDG ratio | 0.900 | 0.870 | 0.850 | 0.800, 0.900 | +0.020 |" in page
    assert "at loads 0.6 and 0.9, served before: batches take 1.062 times as long, and 0.20 ms more" in " ".join(
        page.split()
    )
    assert "| 0.5 | TDG ratio | 0.900 | 0.910 | 0.910, 0.910 | -0.010 |" in page
    assert "| 0.5 | TTFT p50, s | 0.200 | 0.240 | 0.250 | 0.250, 0.250 | -4.0 % |" in page
    assert "| device `linear`, used | 5.1 | 4.2 | 6.3 | 7.4 | 15.5 | 21.6 |" in page
    assert "| 0.5 | 79 finished, 1 failed | 3.4 % of the time | 12 ms |" in page
    assert "| 0.5 | decode | 1,903 | 25.20 | 24.00 | +5.0 % | 9.9 % |" in page
    assert "98 % of the repeats" in page
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 120


def test_a_disturbed_measurement_says_so():
    assert "Disturbed" not in page_of(DOCUMENT)
    late = served(0.4, 0.9) | {"engine_waited_share": 0.61}
    run = DOCUMENT["runs"][0]
    page = page_of(DOCUMENT | {"runs": [run | {"measured": [*run["measured"], late]}]})
    assert "**Disturbed:**" in page
    assert "61 %" in page


def test_noise_of_a_table(tmp_path):
    (tmp_path / "batches.csv").write_text(
        "duration_s,fastest_s,slowest_s,undisturbed\n0.1,0.09,0.11,1\n0.2,0.2,0.24,0.5\n0.4,0.4,0.4,0\n"
    )
    assert noise(tmp_path / "batches.csv") == pytest.approx(
        {"batches": 3, "shortest_s": 0.1, "longest_s": 0.4, "median_spread": 0.2, "undisturbed": 0.5}
    )


@pytest.mark.slow
def test_terms_of_the_server_are_found_in_other_requests(tmp_path):
    profile = load_profile("a100-llama3-8b")
    slower = dataclasses.replace(profile, device=profile.device.times(1.1), front_end=FrontEnd(request_s=0.02))
    runs = []
    for seed, rate_per_s in enumerate((3.0, 6.0), 1):
        requests = Simulation(
            Scenario(
                build_workload("azure-conv", requests=40, rate_per_s=rate_per_s, seed=seed),
                slower.deployment(1), scheduler("vllm-v1"), front_end=slower.front_end,
            )
        ).run().requests  # fmt: skip
        requests.assign(status="finished").to_csv(tmp_path / f"{seed}.csv", index=False)
        runs.append(read_own(tmp_path / f"{seed}.csv", 256, 2048))
    terms, found = with_server(profile, runs)
    assert terms.factor == pytest.approx(1.1, abs=0.02)
    assert terms.client_s == pytest.approx(0.02, abs=0.005)
    assert found.front_end == FrontEnd(request_s=terms.client_s)
    assert found.device.evaluate(Batch(decodes=(100,) * 20).sums())[0] == pytest.approx(
        slower.device.evaluate(Batch(decodes=(100,) * 20).sums())[0], rel=0.02
    )


def test_settings_go_to_the_other_process_and_back():
    words = as_arguments(Settings(loads=(0.5, 1.0), times=3))
    assert words[words.index("--loads") + 1] == "0.5,1.0"
    assert words[words.index("--times") + 1] == "3"


@pytest.mark.skipif(not os.path.exists(f"/proc/{os.getpid()}/schedstat"), reason="Linux says how long a process waits")
def test_a_process_computes():
    before = core_time_s(os.getpid())[0]
    sum(range(3_000_000))
    running_s, waiting_s = core_time_s(os.getpid())
    assert running_s > before
    assert waiting_s >= 0


def test_figures_are_those_of_a_simulation():
    from servegym.api import simulate

    summary = simulate("azure-conv", requests=20, rate_per_s=5).summary
    assert figures(summary).items() <= summary.items()


def test_steps_by_regime():
    """1 s + 1 ms a token; decodes took as long as the model says, prefills half as long. An empty step is nothing."""
    batches = np.concatenate([
        Batch(decodes=(5, 7)).sums(), Batch((Prefill(10),)).sums(), Batch().sums(), Batch(decodes=(3,)).sums(),
    ])  # fmt: skip
    device = linear(t_c=1.0, c_p=1e-3, b_d=1e-3)
    driven = Driven(Replayed([], 0.0), batches, np.array([1.002, 0.505, 9.0, 1.001]))
    assert by_regime(device, driven) == {
        "decode": pytest.approx({"steps": 2, "measured_s": 2.003, "modelled_s": 2.003, "mape_percent": 0.0}),
        "prefill": pytest.approx({"steps": 1, "measured_s": 0.505, "modelled_s": 1.01, "mape_percent": 100.0}),
    }
