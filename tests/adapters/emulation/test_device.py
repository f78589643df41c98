"""The emulated device without vLLM: settings, clocks, accounting of batches, times of steps."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from servegym.adapters.emulation import register_platform
from servegym.adapters.emulation.batches import Requests
from servegym.adapters.emulation.device import LOG_COLUMNS, VIRTUAL_CLOCK, Device, RealClock
from servegym.adapters.emulation.settings import VIRTUAL, Settings, parse_speed
from servegym.baselines.registry import scheduler
from servegym.errors import EmulationError, ProfileError
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import BATCH
from servegym.simulator.runs.simulation import Simulation

PROFILE = "a100-llama3-8b"


def new(name, prompt, computed=0, prefill=None, **arguments):
    params = SimpleNamespace(extra_args=arguments or None)
    tokens = list(range(prompt))
    context = None if prefill is None else list(range(prefill))
    return SimpleNamespace(
        req_id=name, prompt_token_ids=tokens, num_computed_tokens=computed, sampling_params=params,
        prefill_token_ids=context,
    )  # fmt: skip


def output(new_requests=(), cached=(), tokens=None, finished=()):
    """A SchedulerOutput: cached are (name, computed tokens, output tokens)."""
    names, computed, emitted = zip(*cached, strict=True) if cached else ((), (), ())
    return SimpleNamespace(
        scheduled_new_reqs=list(new_requests),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(names), num_computed_tokens=list(computed), num_output_tokens=list(emitted)
        ),
        num_scheduled_tokens=tokens or {},
        finished_req_ids=set(finished),
    )


def test_settings_are_read_from_the_environment(tmp_path):
    log = tmp_path / "log.csv"
    settings = Settings.from_environment(
        {"SERVEGYM_DEVICE": PROFILE, "SERVEGYM_TIME": "0.25", "SERVEGYM_DEVICE_LOG": str(log)}
    )
    assert settings.profile.name == PROFILE
    assert (settings.speed, settings.virtual, settings.log) == (0.25, False, log)
    assert Settings.from_environment({"SERVEGYM_DEVICE": PROFILE}).speed == 1.0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast", "1s"])
def test_a_wrong_time_is_said_in_one_line(text):
    with pytest.raises(EmulationError, match="SERVEGYM_TIME") as caught:
        parse_speed(text)
    assert "\n" not in str(caught.value)


def test_a_missing_or_unknown_device_is_refused():
    with pytest.raises(EmulationError, match="SERVEGYM_DEVICE is not set"):
        Settings.from_environment({})
    with pytest.raises(ProfileError, match="unknown profile"):
        Settings.from_environment({"SERVEGYM_DEVICE": "abacus"})


def test_the_platform_is_ours_only_where_a_device_is_emulated(monkeypatch):
    monkeypatch.delenv("SERVEGYM_DEVICE", raising=False)
    assert register_platform() is None
    monkeypatch.setenv("SERVEGYM_DEVICE", PROFILE)
    assert register_platform() == "servegym.adapters.emulation.Platform"


def test_the_virtual_clock_moves_only_for_what_waits():
    real = time.time()
    with VIRTUAL_CLOCK.installed():
        assert time.time() == time.monotonic() == 0.0
        VIRTUAL_CLOCK.wait_until(2.5)
        VIRTUAL_CLOCK.wait_until(1.0)
        assert time.time() == time.monotonic() == 2.5
    assert 0 <= time.time() - real < 60


def test_the_real_clock_waits():
    clock = RealClock()
    until_s = clock.now_s() + 0.02
    clock.wait_until(until_s)
    assert clock.now_s() >= until_s
    clock.wait_until(until_s - 1)


def test_chunks_decodes_and_ends_are_told_apart():
    """A prompt of 5 in chunks of 3 and 2, beside a prompt of which 4 tokens come from a prefix cache."""
    requests = Requests()
    first = requests.step(output([new("a", 5), new("b", 6, computed=4, output_tokens=2)], tokens={"a": 3, "b": 2}))
    assert (first.emitted, first.ends) == ([0, 1], [False, False])
    sums = first.sums[0]
    assert (sums.prefill_requests, sums.prefill_tokens, sums.prefill_tokens_squared) == (2, 5, 13)
    assert (sums.prefill_tokens_cached, sums.prefill_cached_tokens, sums.longest_prefill_tokens) == (8, 4, 3)
    assert sums.decode_requests == 0
    second = requests.step(output(cached=[("a", 3, 0), ("b", 6, 1)], tokens={"b": 1, "a": 2}))
    assert (second.ids, second.emitted, second.ends) == (["b", "a"], [2, 1], [True, False])
    sums = second.sums[0]
    assert (sums.decode_requests, sums.decode_cached_tokens, sums.longest_decode_cached) == (1, 6, 6)
    assert (sums.prefill_requests, sums.prefill_tokens, sums.prefill_cached_tokens) == (1, 2, 3)
    requests.leave(output(finished=["b"]))
    assert set(requests.held) == {"a"}


def test_the_last_token_of_a_prompt_alone_is_a_prefill():
    requests = Requests()
    requests.step(output([new("a", 3)], tokens={"a": 2}))
    step = requests.step(output(cached=[("a", 2, 0)], tokens={"a": 1}))
    assert (step.sums[0].prefill_requests, step.sums[0].decode_requests, step.emitted) == (1, 0, [1])


@pytest.mark.parametrize("as_new", [False, True])
def test_a_preempted_request_computes_its_context_again(as_new):
    """Prompt of 4 and 2 tokens out: 6 tokens, and then the third comes out. vLLM tells of it in two ways."""
    requests = Requests()
    requests.step(output([new("a", 4)], tokens={"a": 4}))
    requests.step(output(cached=[("a", 4, 1)], tokens={"a": 1}))
    if as_new:
        step = requests.step(output([new("a", 4, prefill=6)], tokens={"a": 6}))
    else:
        step = requests.step(output(cached=[("a", 0, 2)], tokens={"a": 6}))
    assert (step.sums[0].prefill_tokens, step.sums[0].prefill_cached_tokens, step.emitted) == (6, 0, [3])


@pytest.mark.parametrize("value", [0, -3, True, "7", None, [1], float("nan"), float("inf"), 2**40])
def test_an_answers_length_that_is_none_is_ignored(value):
    requests = Requests()
    step = requests.step(output([new("a", 2, output_tokens=value)], tokens={"a": 2}))
    assert step.ends == [False]


def test_a_step_takes_what_the_simulator_takes_for_the_same_batch():
    """To the bit: every duration of a simulated run, from the chunks that its timeline tells of."""
    rng = np.random.default_rng(7)
    workload = Workload.from_columns(
        {
            "arrival_s": np.cumsum(rng.exponential(0.05, 60)),
            "prompt_tokens": rng.integers(10, 900, 60),
            "output_tokens": rng.integers(1, 40, 60),
        }
    )
    profile = load_profile(PROFILE)

    scenario = Scenario(workload, profile.deployment(), scheduler("vllm-v1:max_num_batched_tokens=256"))
    run = Simulation(scenario, record_timeline=True).run()
    device = Device(Settings(profile, VIRTUAL))
    requests, held, started = Requests(), {}, None
    durations = []
    for line in run.timeline.itertuples():
        if line.kind == "batch_start":
            started, batch = line.time_s, {}
        elif line.kind == "scheduled":
            batch[line.request] = line.tokens
        elif line.kind == "batch_end":
            unseen = [new(str(r), int(workload.table["prompt_tokens"][r])) for r in batch if r not in held]
            seen = [(str(r), *held[r]) for r in batch if r in held]
            step = requests.step(output(unseen, seen, {str(r): tokens for r, tokens in batch.items()}))
            for place, (r, tokens) in enumerate(batch.items()):
                computed, emitted = held.get(r, (0, 0))
                held[r] = computed + tokens, max(emitted, step.emitted[place])
            durations.append((line.time_s, started + device.duration_s(step.sums)))
    assert len(durations) == run.summary["iterations"] > 100
    ended, expected = np.array(durations).T
    assert (ended == expected).all()


def test_steps_follow_each_other_in_virtual_time(tmp_path):
    profile = load_profile(PROFILE)
    device = Device(Settings(profile, VIRTUAL, tmp_path / "log.csv"))
    sums = np.zeros(1, BATCH)
    sums["decode_requests"], sums["decode_cached_tokens"], sums["longest_decode_cached"] = 1, 100, 100
    lasts_s = device.duration_s(sums)
    with VIRTUAL_CLOCK.installed():
        first, second = device.run(sums, "first"), device.run(sums, "second")
        assert not first.done() and not second.done()
        assert (first.result(), VIRTUAL_CLOCK.now_s()) == ("first", lasts_s)
        assert first.done() and not second.done()
        assert (second.result(), VIRTUAL_CLOCK.now_s()) == ("second", lasts_s + lasts_s)
    device.close()
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == ",".join(LOG_COLUMNS)
    assert [float(line.split(",")[4]) for line in lines[1:]] == pytest.approx([lasts_s] * 2, rel=1e-8)


def test_a_slower_device_takes_longer():
    profile = load_profile(PROFILE)
    sums = np.zeros(1, BATCH)
    sums["decode_requests"] = 1
    device = Device(Settings(profile, 0.25))
    start_s = time.perf_counter()
    device.run(sums, None).result()
    took_s = time.perf_counter() - start_s
    assert device.duration_s(sums) / 0.25 <= took_s < device.duration_s(sums) / 0.25 + 1.0
