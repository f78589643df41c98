"""Sources of scenarios: what they draw, that it can be drawn again, and what they refuse."""

import itertools
import json
import math
import pickle
import time

import numpy as np
import pytest

from experiments.profiles.saturations import COMMAND
from servegym.errors import ServegymError, SpecError, WorkloadError
from servegym.latency_models.profile import load_profile, profile_names
from servegym.scenarios import saturation
from servegym.scenarios.demand import BURST, STEADY, Demand
from servegym.scenarios.parts import Fleet
from servegym.scenarios.presets import EPISODES
from servegym.scenarios.ranges import Range
from servegym.scenarios.sampling import SPLITS, arrivals_s, sample_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.workloads import build_workload

DEVICE = "a100-llama3-8b"
RICH = EPISODES.replaced(
    trace=("azure-conv", "sharegpt"),
    load=(0.3, 1.0),
    slo=("proserve", "qoserve:low_share=0.2"),
    slo_scale=Range(0.5, 2.0),
    cv=Range(1.0, 3.0),
    requests=Range(20, 40),
    prefill=2,
    decode=1,
    signal_delay_s=0.01,
    gain=Gain("ta-slo", first_weight=2.0),
    scheduler="slide-batching:gamma=2.0",
    router="min-load",
    noise=0.1,
    correction=Correction(theta=0.5),
    predictor=Predictor(length_error=0.2),
    incidents=(Incident(3.0, 1, "fail"), Incident(9.0, 1, "return")),
    split="test",
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def drawn(source, seed: int = 0, number: int = 5):
    generator = rng(seed)
    return [source(generator) for _ in range(number)]


def identity(scenario) -> str:
    return repr((scenario.workload.table.tobytes(), scenario.workload.provenance, scenario.deployment.name,
                 getattr(scenario.deployment, "tiers", None), scenario.disturbance, scenario.predictor))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("source", [EPISODES, RICH], ids=["default", "rich"])
def test_one_state_of_the_generator_is_one_scenario(source):
    first, again, other = (list(map(identity, drawn(source, seed))) for seed in (0, 0, 1))
    assert first == again
    assert len({*first, *other}) == 10
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source
    assert list(map(identity, drawn(copy))) == first


@pytest.mark.parametrize("source", [EPISODES, RICH], ids=["default", "rich"])
def test_json_and_back(source):
    text = json.dumps(source.to_json(), allow_nan=False)
    copy = ServingSpec.from_json(json.loads(text))
    assert copy == source
    assert list(map(identity, drawn(copy))) == list(map(identity, drawn(source)))


def test_json_says_what_differs_only():
    source = ServingSpec.from_json({"demand": {"load": {"low": 0.5, "high": 1.0}, "cv": [1.0, 2.0]}, "engines": 2})
    assert source == ServingSpec(Demand(load=Range(0.5, 1.0), cv=(1.0, 2.0)), Fleet(engines=2))


def test_everything_random_is_drawn_within_what_was_asked_for():
    scenarios = drawn(RICH, number=40)
    provenance = [scenario.workload.provenance for scenario in scenarios]
    assert {scenario.workload.name for scenario in scenarios} == set(RICH.demand.trace)
    assert {one["slo"] for one in provenance} == set(RICH.demand.slo)
    assert {one["load"] for one in provenance} == {0.3, 1.0}
    for name, low, high in (("slo_scale", 0.5, 2.0), ("cv", 1.0, 3.0)):
        values = [one[name] for one in provenance]
        assert low <= min(values) < low * (high / low) ** 0.2 < low * (high / low) ** 0.8 < max(values) <= high
    lengths = [len(scenario.workload) for scenario in scenarios]
    assert 20 <= min(lengths) < 25 < 35 < max(lengths) <= 40
    assert len({scenario.disturbance.seed for scenario in scenarios}) == 40
    assert len({scenario.predictor.seed for scenario in scenarios}) == 40


def test_a_range_is_log_uniform():
    generator = rng()
    numbers = [Range(0.1, 10.0).draw(generator) for _ in range(4000)]
    assert np.mean(np.array(numbers) < 1.0) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("engines", [1, 3])
def test_the_load_is_relative_to_the_saturation_of_all_engines(engines):
    source = EPISODES.replaced(
        trace=("azure-conv",), load=0.7, requests=20_000, load_profile=(STEADY,), engines=engines, router=None
    )
    workload = source(rng()).workload
    assert len(workload) == 20_000
    saturation_rate_per_s = saturation.known_saturation_rate_per_s("azure-conv", DEVICE, "proserve")
    assert workload.rate_per_s == pytest.approx(0.7 * engines * saturation_rate_per_s, rel=0.03)


def test_the_parts_of_a_profile_have_their_rates():
    gaps_s = np.diff(arrivals_s(rng(), 40_000, 5.0, BURST), prepend=0.0)
    rates = [1 / part.mean() for part in np.split(gaps_s, [10_000, 28_000])]
    assert rates == pytest.approx([2.0, 5.0, 2.0], rel=0.04)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_burstiness_is_the_variation_of_the_gaps(cv):
    gaps_s = np.diff(arrivals_s(rng(), 100_000, 2.0, STEADY, cv), prepend=0.0)
    assert gaps_s.mean() == pytest.approx(0.5, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.03)


def test_overload_builds_up_and_drains():
    source = EPISODES.replaced(trace=("azure-conv",), load=1.6, requests=400, load_profile=(BURST,))
    for scenario in drawn(source, number=3):
        result = Simulation(scenario).run()
        waited_s = result.requests["first_token_s"] - result.requests["arrival_s"]
        calm_s, burst_s = waited_s[:100].median(), waited_s[180:280].quantile(0.9)
        assert calm_s < 0.5
        assert burst_s > 4 * calm_s
        assert waited_s[380:].median() < burst_s / 2


def test_splits_of_a_family_have_other_requests():
    tables = [sample_of("azure-conv", "proserve", (DEVICE,), split, None).table for split in SPLITS]
    for one, other in itertools.combinations(tables, 2):
        assert len(one) == len(other)
        same = (one["prompt_tokens"] == other["prompt_tokens"]) & (one["output_tokens"] == other["output_tokens"])
        assert same.mean() < 0.01
        assert one["prompt_tokens"].mean() == pytest.approx(other["prompt_tokens"].mean(), rel=0.05)
    for earlier, later in itertools.pairwise(SPLITS.values()):
        assert earlier.stop == later.start


def file_of(path, rows: int) -> str:
    path.write_text("prompt_tokens,output_tokens\n" + "".join(f"{100 + i},{1 + i % 7}\n" for i in range(rows)))
    return str(path)


def test_splits_of_a_file_are_parts_of_it(tmp_path):
    trace = file_of(tmp_path / "own.csv", 100)
    for split, low, high in (("train", 100, 159), ("validation", 160, 169), ("test", 170, 199)):
        source = EPISODES.replaced(trace=(trace,), requests=min(25, high - low), split=split)
        prompts = np.array([scenario.workload.table["prompt_tokens"] for scenario in drawn(source, number=60)])
        assert (np.diff(prompts) == 1).all()  # in a row
        assert (prompts.min(), prompts.max()) == (low, high)


def test_a_file_that_is_too_short(tmp_path):
    trace = file_of(tmp_path / "own.csv", 100)
    with pytest.raises(SpecError, match=r"an episode of 31 requests; its test part has 30"):
        EPISODES.replaced(trace=(trace,), requests=31, split="test")(rng())
    with pytest.raises(SpecError, match="its train part has no request"):
        EPISODES.replaced(trace=(file_of(tmp_path / "one.csv", 1),), requests=1)(rng())


def test_slos_and_tiers_are_scaled():
    plain, scaled = (
        EPISODES.replaced(slo=("polyserve",), slo_scale=scale, engines=2, router="polyserve")(rng())
        for scale in (1.0, 3.0)
    )
    for field in ("ttft_slo_s", "tpot_slo_s"):
        assert (scaled.workload.table[field] == 3.0 * plain.workload.table[field]).all()
    assert (scaled.workload.table["ttlt_slo_s"] == math.inf).all()
    assert scaled.deployment.tiers == tuple(3.0 * tier for tier in plain.deployment.tiers)
    assert set(scaled.workload.table["tpot_slo_s"]) <= set(scaled.deployment.tiers)
    assert (scaled.workload.table["arrival_s"] == plain.workload.table["arrival_s"]).all()


def test_what_serves():
    roles = [(pool.role, pool.engines, pool.scheduler and pool.scheduler.name) for pool in RICH(rng()).deployment.pools]
    assert roles == [("prefill", 2, None), ("decode", 1, "vllm-fcfs")]
    assert RICH(rng()).deployment.link.latency_s == 0.0
    assert EPISODES.replaced(engines=4)(rng()).deployment.engines == 4
    assert EPISODES(rng()).deployment.pools[0].total_blocks == load_profile(DEVICE).kv.total_blocks


@pytest.mark.parametrize("source", [EPISODES.replaced(requests=30), RICH], ids=["default", "rich"])
def test_scenarios_run_to_their_end(source):
    for scenario in drawn(source, number=3):
        assert Simulation(scenario).run().summary["finished"] == len(scenario.workload)


@pytest.mark.slow
def test_requests_that_are_too_long_are_left_out():
    source = EPISODES.replaced(trace=("sharegpt",), requests=300, max_total_tokens=500)
    for scenario in drawn(source):
        table = scenario.workload.table
        assert (table["prompt_tokens"] + table["output_tokens"]).max() <= 500
    shorter, all_of_it = (
        saturation.known_saturation_rate_per_s("sharegpt", DEVICE, "proserve", limit) for limit in (500, None)
    )
    assert shorter > 2 * all_of_it


@pytest.mark.slow
def test_prompts_too_long_are_left_out_of_episodes_and_of_the_load():
    one = {"requests": 2000, "load": 1.0, "load_profile": (STEADY,), "engines": 1, "router": None}
    source = EPISODES.replaced(trace=("sharegpt",), max_prompt_tokens=100, **one)
    workload = source(np.random.default_rng(0)).workload
    assert workload.table["prompt_tokens"].max() <= 100 < workload.table["output_tokens"].max()
    limited, all_of_them = (
        saturation.known_saturation_rate_per_s("sharegpt", DEVICE, "proserve", max_prompt_tokens=limit)
        for limit in (100, None)
    )
    assert limited > 1.2 * all_of_them and workload.rate_per_s == pytest.approx(limited, rel=0.1)


@pytest.mark.slow
def test_a_scenario_is_made_in_much_less_time_than_its_requests_alone_take_anew():
    source, generator = EPISODES, rng()

    def least_s(make):
        took_s = []
        for _ in range(40):
            begin = time.perf_counter()
            make()
            took_s.append(time.perf_counter() - begin)
        return min(took_s)

    seeds = itertools.count()
    anew_s = least_s(lambda: build_workload("azure-conv", requests=300, rate_per_s=5.0, seed=next(seeds)))
    assert least_s(lambda: Simulation(source(generator))) < 0.3 * anew_s


@pytest.mark.parametrize(("values", "says"), [
    ({"trace": 3}, "trace is 3; it should be a name, or several"),
    ({"device": ()}, r"device is \(\)"),
    ({"slo": (1, 2)}, r"slo is \(1, 2\)"),
    ({"load": 0.0}, "load is 0.0; it should be a number above 0"),
    ({"load": (0.3, math.nan)}, "load is"),
    ({"load": ()}, r"load is \(\)"),
    ({"cv": "much"}, "cv is 'much'"),
    ({"slo_scale": -1.0}, "slo_scale is -1.0"),
    ({"requests": math.inf}, "requests is inf"),
    ({"engines": 0}, "engines is 0; it should be a whole number from 1 to 4096"),
    ({"engines": 1.5}, "engines is 1.5"),
    ({"prefill": 1}, "prefill engines and no decode engines"),
    ({"prefill": 1, "decode": 1, "engines": 2}, "--engines is given, and --prefill and --decode too"),
    ({"prefill": 1, "decode": 1, "link_gb_per_s": 0.0}, "link_gb_per_s is 0.0"),
    ({"split": "held-out"}, "split is 'held-out'; it should be one of train, validation, test"),
    ({"load_profile": ()}, r"a load profile of \(\)"),
    ({"load_profile": (1.0, 1.0)}, "a load profile of"),
    ({"load_profile": ((1.0, 0.0),)}, "a load profile of"),
    ({"arrivals": "gamma:cv=3"}, "arrivals gamma:cv=3 and a load profile or cv are given"),
    ({"incidents": "fail:0@3"}, "incidents is 'fail:0@3'"),
    ({"incidents": ["fail:1@3"]}, "engines are numbered 0 to 0"),
    ({"loads": 1.0}, r"unknown field of a spec 'loads' \(did you mean 'load'\?\); there are: demand, "),
])  # fmt: skip
def test_values_that_make_no_source(values, says):
    with pytest.raises(SpecError, match=says) as raised:
        EPISODES.replaced(**values)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("document", "says"), [
    ({"load": {"low": 0.3}}, "a range has low and high"),
    ({"load": {"low": 0.5, "high": 0.3}}, "from 0.5 to 0.3"),
    ({"load": {"low": "a", "high": 0.3}}, "a load of 'a'"),
    ({"gain": {"weight": 2}}, "unknown key of gain .weight"),
    ({"gain": {"name": "most"}}, "unknown gain function 'most'"),
    ({"incidents": [{"time_s": 1.0}]}, "an incident: .*missing"),
    ({"incidents": 3}, "incidents is 3"),
    ({"gains": {}}, "unknown field of a spec 'gains'"),
    ({"fleet": {"load": 1.0}}, "unknown field of fleet 'load'; there are: device, "),
    ({"fleet": 4}, "fleet is 4; it should be keys with values"),
    ({"fleet": {"engines": 2}, "engines": 3}, "engines is given twice"),
])  # fmt: skip
def test_documents_that_make_no_source(document, says):
    with pytest.raises(ServegymError, match=says) as raised:
        ServingSpec.from_json(document)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [{"trace": "nothing"}, {"slo": "nothing"}, {"device": "nothing"}, {"scheduler": "nothing"}],
    ids=lambda values: next(iter(values)),
)
def test_unknown_names_are_said_when_a_scenario_is_drawn(values):
    with pytest.raises(ServegymError, match="nothing"):
        EPISODES.replaced(**values)(rng())


def test_a_load_for_a_trace_that_is_not_in_the_table_is_measured(tmp_path):
    trace = file_of(tmp_path / "own.csv", 60)
    rate_per_s = saturation.known_saturation_rate_per_s(trace, DEVICE, "proserve")
    assert rate_per_s == saturation.saturation_rate_per_s(trace, load_profile(DEVICE))


def test_the_table_of_saturations_is_what_is_measured():
    table = saturation.measured_saturations()
    assert {name: known["profile_sha256"] for name, known in table.items()} == {
        name: saturation.profile_sha256(name) for name in profile_names()
    }, COMMAND
    known = table[DEVICE]
    measured = saturation.saturation_rate_per_s("azure-conv", load_profile(DEVICE))
    assert known["rates_per_s"]["proserve"]["azure-conv"] == pytest.approx(measured, rel=1e-9)


def test_the_table_is_not_used_for_another_profile(monkeypatch):
    monkeypatch.setattr(saturation, "profile_sha256", lambda device: "another")
    monkeypatch.setattr(saturation, "saturation_rate_per_s", lambda *_, **__: 12.5)
    assert saturation.known_saturation_rate_per_s.__wrapped__("azure-conv", DEVICE, "proserve") == 12.5


def test_a_trace_with_a_typing_error_is_named():
    with pytest.raises(WorkloadError, match="did you mean 'azure-conv'"):
        EPISODES.replaced(trace=("azure-convv",))(rng())
