"""Schedulers that tune themselves: by what has been served, and by nothing else."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.artifact import Artifact
from servegym.baselines.learned.derived import check_base
from servegym.baselines.registry import scheduler
from servegym.envs.engine_batching import EngineBatchingEnv
from servegym.errors import DeploymentError, PolicyError
from servegym.evaluation.identity import code_digests
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.policies.policy import from_json
from servegym.simulator.policies.self_tuning import SelfTuning
from servegym.simulator.runs.simulation import Simulation, serve_with
from servegym.simulator.runs.streaming import check_streamable
from servegym.simulator.runs.tuner import Tuner, likely_lengths, served_so_far
from tests.simulator.arrays import as_bytes
from tests.simulator.forming import SECONDS
from tests.strategies import scenarios

SPEC = ServingSpec().replaced(trace="azure-conv", load=1.4, requests=60)
BAD, GOOD = "sarathi-fcfs:max_num_batched_tokens=16", {"max_num_batched_tokens": 256}


def tuning(text="sarathi-fcfs", settings=(GOOD,), **how):
    how = {"first": 10, "window": 20, "margin": 0.0} | how
    return dataclasses.replace(scheduler(text), self_tuning=SelfTuning(settings, **how))


def tuned(policy, spec=SPEC, seed=3, **changes):
    scenario = dataclasses.replace(spec.build(seed), scheduler=policy, **changes)
    return Simulation(scenario)


def test_it_chooses_what_does_better():
    bad, good = (tuned(scheduler(BAD).with_settings(**more)).run().figure("gain") for more in ({}, GOOD))
    simulation = tuned(tuning(BAD))
    gain = simulation.run().figure("gain")
    assert bad < gain < good
    assert simulation.tuner.chosen[0] == (0.0, 0)
    assert {index for _, index in simulation.tuner.chosen[1:]} == {1}


def test_when_it_chooses():
    simulation = tuned(tuning(first=5, window=20))
    simulation.run()
    arrival_s = simulation.scenario.workload.table["arrival_s"]
    assert [at_s for at_s, _ in simulation.tuner.chosen] == [0.0, *arrival_s[[5, 10, 20, 40]]]


def test_settings_that_change_nothing_change_no_byte():
    plain, same = tuned(scheduler(BAD)), tuned(tuning(BAD, ({}, {"max_num_seqs": 128})))
    plain.run(), same.run()
    assert as_bytes(same.arrays) == as_bytes(plain.arrays)


def test_it_stays_with_what_is_better_by_less_than_the_margin():
    simulation = tuned(tuning(BAD, margin=10.0))
    simulation.run()
    assert {index for _, index in simulation.tuner.chosen} == {0}


@given(scenario=scenarios("expected-gain", most_requests=12), data=st.data())
def test_nothing_hidden_is_known(scenario, data):
    """Of a run that is stopped somewhere: no later request, no length of an answer under way, nothing of the device."""
    scenario = dataclasses.replace(scenario, predictor=None, gain=dataclasses.replace(scenario.gain, first_weight=1.0))
    table = scenario.workload.table
    until_s = data.draw(st.sampled_from(table["arrival_s"].tolist())) + data.draw(st.floats(0, 8))
    simulation = Simulation(dataclasses.replace(scenario, until_s=until_s))
    simulation.run()
    run = simulation.arrays
    seen = served_so_far(scenario, run, window=1000)
    other = table.copy()
    unfinished = ~np.isfinite(run.outcomes["finish_s"])
    other["output_tokens"][unfinished] = run.requests["num_output_tokens"][unfinished] + 1
    device = scenario.deployment.device.batch_s, np.zeros_like(scenario.deployment.device.coefficients)
    changed = dataclasses.replace(
        scenario,
        workload=dataclasses.replace(scenario.workload, table=other),
        deployment=dataclasses.replace(scenario.deployment, device=Model(*device)),
    )
    again = served_so_far(changed, run, window=1000)
    came = int(run.status[0].next_arrival)
    assert len(seen.workload) == came and seen.workload.digest == again.workload.digest
    now = seen.workload.table["output_tokens"]
    assert (now[unfinished[:came]] > run.requests["num_output_tokens"][:came][unfinished[:came]]).all()
    assert (now[~unfinished[:came]] == table["output_tokens"][:came][~unfinished[:came]]).all()
    for one in (seen, again):
        assert one.deployment.device.batch_s is scenario.deployment.estimator.batch_s
        assert (one.deployment.device.coefficients == run.estimate[0][: len(one.deployment.device.coefficients)]).all()
    Simulation(seen).run()  # it can be served


@dataclasses.dataclass(frozen=True)
class Model:
    batch_s: object
    coefficients: np.ndarray


def test_prompts_that_begin_alike_are_known_without_their_answers():
    scenario = SPEC.build(0)
    table = scenario.workload.table
    offsets = np.concatenate([[0], np.cumsum((table["prompt_tokens"] + table["output_tokens"]) // 16)])
    prompts = Prompts(16, offsets, np.arange(offsets[-1]))
    scenario = dataclasses.replace(scenario, workload=dataclasses.replace(scenario.workload, prefixes=prompts))
    simulation = Simulation(dataclasses.replace(scenario, until_s=float(table["arrival_s"][20])))
    simulation.run()
    seen = served_so_far(scenario, simulation.arrays, window=10)
    assert (np.diff(seen.workload.prefixes.offsets) == seen.workload.table["prompt_tokens"] // 16).all()
    assert len(seen.workload) == 10


def test_estimates_are_those_of_now():
    simulation = tuned(scheduler("expected-gain"), correction=Correction())
    scenario = dataclasses.replace(simulation.scenario, until_s=5.0)
    simulation = Simulation(scenario)
    simulation.run()
    estimate = simulation.arrays.estimate[0].copy()
    seen = served_so_far(scenario, simulation.arrays, window=10)
    assert (seen.deployment.device.coefficients == estimate).all()
    assert (estimate != scenario.deployment.estimator.coefficients).any()


def test_long_answers_are_not_taken_for_short_ones_because_they_have_not_finished():
    draw = np.random.default_rng(0)
    lengths, seen_until = draw.geometric(1 / 300, 4000), draw.integers(0, 600, 4000)
    finished = lengths <= seen_until
    emitted = np.minimum(lengths, seen_until)
    drawn = likely_lengths(np.where(finished, lengths, 1), emitted, finished)
    assert (drawn[finished] == lengths[finished]).all() and (drawn[~finished] > emitted[~finished]).all()
    assert lengths[finished].mean() < 0.6 * lengths.mean()
    # Geometric lengths: whoever has not finished has as many left as anybody had at first; the longest are not known.
    assert 0.75 * lengths.mean() < drawn.mean() < 1.05 * lengths.mean()


def test_lengths_before_any_answer_has_finished():
    assert likely_lengths(np.array([9, 9]), np.array([0, 7]), np.zeros(2, bool)).tolist() == [200, 207]


def test_a_copy_in_the_middle_goes_on_alike_and_a_reset_begins_anew():
    simulation = tuned(tuning(BAD))
    for _ in range(400):
        assert simulation.step()
    other = simulation.copy()
    first, second = simulation.run(), other.run()
    assert first.arrays.outcomes.tobytes() == second.arrays.outcomes.tobytes()
    assert simulation.tuner.chosen == other.tuner.chosen and len(other.tuner.chosen) > 1
    simulation.reset()
    assert simulation.run().arrays.outcomes.tobytes() == first.arrays.outcomes.tobytes()


def test_all_engines_of_a_cluster_have_what_was_chosen():
    simulation = tuned(tuning(BAD), SPEC.replaced(engines=2))
    simulation.run()
    chosen = simulation.tuner.numbers[1]
    assert (simulation.arrays.parameters[:, : chosen.shape[1]] == chosen).all() and len(chosen) == 2


def test_serving_with_numbers_is_serving_with_settings():
    plain = tuned(scheduler(BAD))
    numbers = Tuner(plain.scenario, SelfTuning((GOOD,)), serve_with).numbers[1]
    set_so = tuned(scheduler(BAD).with_settings(**GOOD))
    assert serve_with(plain.scenario, numbers).summary["gain"] == set_so.run().summary["gain"]


def test_names():
    policy = scheduler("self-tuned:expected-gain:gamma=3")
    assert policy.label == "self-tuned:expected-gain:gamma=3"
    assert policy.to_json()["self_tuning"]["first"] == 100
    plain = scheduler("expected-gain:gamma=3")
    with pytest.raises(PolicyError, match="self-tuned:"):
        from_json(policy.to_json())
    digests = code_digests([policy], SPEC.build(0).deployment)
    assert set(digests) - set(code_digests([plain], SPEC.build(0).deployment)) == {"self-tuning"}


def test_what_cannot_tune_itself():
    with pytest.raises(PolicyError, match=r"edf cannot tune itself; .* expected-gain"):
        scheduler("self-tuned:edf")
    policy = scheduler("self-tuned:expected-gain")
    sessions = ServingSpec().replaced(trace="azure-conv", requests=20, clients=2, load=None)
    with pytest.raises(PolicyError, match="arrivals are known beforehand"):
        tuned(policy, sessions)
    pool = Deployment(SECONDS, SECONDS, 100_000, scheduler=policy)
    with pytest.raises(PolicyError, match="for all"):
        tuned(scheduler("edf"), deployment=pool)
    with pytest.raises(DeploymentError, match="tunes itself"):
        check_streamable(tuned(policy).scenario)
    with pytest.raises(PolicyError, match="in an environment"):
        EngineBatchingEnv(SPEC, scheduler="self-tuned:expected-gain", controls=("gamma",)).reset(seed=0)
    with pytest.raises(PolicyError, match="SERVEGYM_SELF_TUNING"):
        Artifact({"scheduler": policy})
    with pytest.raises(PolicyError, match="tunes itself; the base"):
        check_base(policy, "scheduler")
