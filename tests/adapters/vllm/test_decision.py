"""When the policy fails or is late, vLLM decides, and the policy is tried again."""

from pathlib import Path

import numpy as np
import pytest

from servegym.adapters.vllm.decision import Decisions, decisions_for
from servegym.adapters.vllm.metrics import Metrics
from servegym.adapters.vllm.settings import Settings
from servegym.baselines import registry
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.errors import ServegymError, VllmError
from servegym.latency_models.profile import load_profile
from servegym.simulator.policies.policy import Policy, get_policy
from servegym.simulator.records.signatures import scheduler

registry.load()


@scheduler
def nothing_but_nan(context, ranks, limits):
    queue = context.queue
    for position in range(queue.shape[0]):
        ranks[position].key = np.nan


NAN = Policy("nan", "scheduler", "Ranks that are no numbers.", "a test", nothing_but_nan)


def settings_for(tmp_path: Path, policy: Policy, with_estimator: bool = True, **settings: object) -> Settings:
    model = load_profile("a100-llama3-8b").estimator
    written = {"profile": None, "form": model.form, "coefficients": model.coefficients.tolist(), "fit": {}}
    path = tmp_path / "policy.json"
    save_artifact(Artifact({policy.kind: policy}, written if with_estimator else None, {"tpot_slo_s": 0.05}), path)
    return Settings(str(path), **settings)  # type: ignore[arg-type]


def decisions(settings: Settings, warnings: list[str]) -> Decisions:
    return decisions_for(settings, Metrics(), 100, 16, 0, warnings.append)


def with_a_request(made: Decisions) -> None:
    made.mirror.join(made.mirror.add(0.0, 20, 5, 0, made.reader.read(None, 0)))


def plans(made: Decisions, times: int) -> list[bool]:
    return [made.plan(0.1 * n, 100, 1000, 1000, 10) is not None for n in range(times)]


def test_a_policy_that_fails_is_tried_again_ever_more_rarely(tmp_path: Path) -> None:
    warnings: list[str] = []
    made = decisions(settings_for(tmp_path, get_policy("scheduler", "vllm-v1"), decision_limit_s=60.0), warnings)
    with_a_request(made)
    sound = made.mirror.functions
    broken = [NAN.function.value] * len(sound.schedulers)
    made.mirror.decide_by(sound._replace(schedulers=tuple(broken)))
    assert not any(plans(made, 1 + 1 + 1 + 3 + 1 + 7))
    assert made.metrics.counts["failures"] == 3
    assert made.metrics.counts["fallback_steps"] == 14
    made.mirror.decide_by(sound)
    assert plans(made, 2) == [True, True]
    assert made.failures_in_a_row == 0
    assert len(warnings) == 1
    assert "vllm-v1 failed (it ranked request " in warnings[0]


def test_a_late_decision_is_not_used(tmp_path: Path) -> None:
    warnings: list[str] = []
    made = decisions(settings_for(tmp_path, get_policy("scheduler", "vllm-v1"), decision_limit_s=1e-9), warnings)
    with_a_request(made)
    assert plans(made, 3) == [False, False, False]
    assert made.metrics.counts["late"] == 2
    assert made.metrics.counts["decisions"] == 0
    assert len(warnings) == 1


def test_the_wait_between_trials_is_bounded(tmp_path: Path) -> None:
    made = decisions(settings_for(tmp_path, get_policy("scheduler", "vllm-v1")), [])
    with_a_request(made)
    made.failures_in_a_row = 60
    sound = made.mirror.functions
    made.mirror.decide_by(sound._replace(schedulers=(NAN.function.value,) * len(sound.schedulers)))
    plans(made, 1)
    assert made.steps_alone == 1023


def test_artifacts_that_cannot_serve_here(tmp_path: Path) -> None:
    with pytest.raises(VllmError, match="is no scheduler"):
        decisions(settings_for(tmp_path, get_policy("router", "round-robin")), [])
    with pytest.raises(VllmError, match="has no estimator"):
        decisions(settings_for(tmp_path, get_policy("scheduler", "slide-batching"), with_estimator=False), [])
    settings = settings_for(tmp_path, get_policy("scheduler", "slide-batching"), False, estimator="a100-llama3-8b")
    assert decisions(settings, []).label == "slide-batching"
    Path(settings.policy).write_text("{")
    with pytest.raises(ServegymError):
        decisions(settings, [])


def test_what_depends_on_the_workload_is_taken_from_the_artifact(tmp_path: Path) -> None:
    made = decisions(settings_for(tmp_path, get_policy("scheduler", "slide-batching")), [])
    assert made.mirror.run.parameters[0, 1] == pytest.approx(0.9 * 0.05)
    made = decisions(settings_for(tmp_path, get_policy("scheduler", "sarathi-fcfs")), [])
    assert made.mirror.run.parameters[0, 0] % 16 == 0
    assert made.mirror.run.parameters[0, 0] > 16


def test_a_metrics_port_that_is_taken_or_not_possible() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(VllmError, match="metrics_port"):
            Metrics(taken.getsockname()[1])
