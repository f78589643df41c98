"""Panels: those that come with the package, and files that are not what they should be."""

import dataclasses

import pytest

from servegym.baselines.registry import router, scheduler
from servegym.errors import ServegymError
from servegym.evaluation.panels.panel import FIRST_SEED, PANELS, PanelError, load_panel
from servegym.evaluation.shipped_files import names_in
from servegym.latency_models.profile import load_profile
from servegym.scenarios.presets import PRESETS
from servegym.scenarios.ranges import listed
from servegym.scenarios.spec import ServingSpec
from servegym.traces.loading import trace_names

TRAINING_TRACES = {"azure-conv", "sharegpt"}
SEEDS_ONLY = {"score", "score_routers", "score_validation", "leaderboard", "leaderboard_routers"}  # held out by seeds
SEEDS_ONLY |= {"session_fleet", "session_fleet_training", "mixed_fleet", "lora_fleet"}
SMALL = "trace: [azure-code]\ndevice: [a100-llama3-8b]\nload: [light, 1.2]\n"


@pytest.mark.parametrize("name", names_in(PANELS))
def test_the_panels_of_the_package_are_held_out_and_need_no_files(name):
    panel = load_panel(name)
    assert panel.name == name and panel.description
    assert set(panel.traces) <= set(trace_names()) - (set() if name in SEEDS_ONLY else TRAINING_TRACES)
    if name.endswith("_training"):
        assert panel.first_seed + panel.cells * panel.seeds <= FIRST_SEED
    else:
        assert panel.first_seed >= FIRST_SEED == 1_000_000
    assert {load_profile(device).name for device in panel.devices} == set(panel.devices)
    assert scheduler(panel.spec.policies.scheduler) and router(panel.spec.policies.router)
    assert panel.requests <= 2000  # more have no bound


def test_what_is_searched_on_is_not_what_is_judged_on():
    """The panels of scores have no seed in common: schedulers' and routers' apart, which serve other fleets."""
    for panels in (("score", "score_validation", "leaderboard"), ("score_routers", "leaderboard_routers")):
        seeds = [
            set(range(panel.first_seed, panel.first_seed + panel.cells * panel.seeds))
            for panel in map(load_panel, panels)
        ]
        assert len(set().union(*seeds)) == sum(map(len, seeds))


def test_the_session_fleet_is_that_of_the_preset():
    preset = ServingSpec().with_overrides(PRESETS["session-fleet"].overrides)
    for name in ("session_fleet", "session_fleet_training"):
        spec = load_panel(name).spec
        for field in ("trace", "max_prompt_tokens", "requests", "prefix_caching", "scheduler", "router"):
            assert listed(spec[field]) == listed(preset[field]), field
        first, *others = spec.fleet.pools
        assert (dataclasses.replace(first, device=load_panel(name).devices[0]), *others) == preset.fleet.pools


def test_the_mixed_fleet_is_that_of_the_preset():
    panel, preset = load_panel("mixed_fleet"), ServingSpec().with_overrides(PRESETS["mixed-fleet"].overrides)
    first, *others = panel.spec.fleet.pools
    assert (dataclasses.replace(first, device=panel.devices[0]), *others) == preset.fleet.pools
    assert {min(panel.loads), max(panel.loads)} == {preset.demand.load.low, preset.demand.load.high}


def test_there_is_one_for_schedulers_and_one_for_routers():
    assert load_panel("held_out").spec.fleet.total == 1
    assert load_panel("held_out_routers").spec.fleet.total > 1


def test_a_panel_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL + "seeds: 2\narrivals: null\ndescription: >\n  two\n  lines\n")
    panel = load_panel(path)
    assert (panel.name, panel.loads, panel.seeds, panel.cells) == ("mine", (0.3, 1.2), 2, 2)
    assert (panel.spec.demand.arrivals, panel.description) == (None, "two lines")
    assert load_panel(str(path)) == panel


def test_a_changed_panel_has_another_name():
    panel = load_panel("held_out")
    assert panel.replaced({"requests": panel.requests, "slo": None}, seeds=None) is panel
    changed = panel.replaced({}, seeds=2)
    assert (changed.name, changed.description, changed.seeds) == ("held_out-changed", "", 2)
    assert changed.replaced({"requests": 9}).name == "held_out-changed"
    devices = ("a100-qwen1.5-4b", "a100-qwen1.5-7b")  # whose names have a point, and no ending
    assert panel.replaced({"device": devices}, seeds=None).devices == devices


@pytest.mark.parametrize("text, problem", [
    ("trace: [azure-code]\ndevice: [a]\n", "mine.yaml: load is missing"),
    (SMALL + "gpus: 4\n", "mine.yaml: unknown field of a spec 'gpus'"),
    (SMALL.replace("[azure-code]", "[]"), "trace is ()"),
    (SMALL.replace("[azure-code]", "[3]"), "trace is 3; it should be a name"),
    (SMALL + "slo: [proserve, qoserve]\n", "mine.yaml: slo is ['proserve', 'qoserve']; here it should be one value"),
    (SMALL.replace("azure-code", "azure-code, azure-code"), "trace names azure-code twice"),
    (SMALL.replace("azure-code", "a/mine.csv, b/mine.csv"), "trace names mine twice"),
    (SMALL.replace("light", "lite"), "a load of 'lite'"),
    (SMALL.replace("light", "-1"), "load is (-1, 1.2); it should be a number above 0"),
    (SMALL + "seeds: many\n", "mine.yaml: panel mine: seeds is 'many'; it should be a whole number"),
    (SMALL + "seeds: true\n", "seeds is True; it should be a whole number"),
    (SMALL + "seeds: 0\n", "seeds is 0; it should be a whole number of 1 or more"),
    (SMALL + "first_seed: -1\n", "first_seed is -1; it should be a whole number of 0 or more"),
    (SMALL + "slo: null\n", "slo is None; it should be a name"),
    ("- a\n", "should be a mapping"),
    ("trace: [a\n", "mine.yaml is no YAML"),
])  # fmt: skip
def test_what_is_no_panel(tmp_path, text, problem):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ServegymError) as error:
        load_panel(path)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_panel_there_is_not():
    with pytest.raises(
        PanelError, match="unknown panel 'held-in'; there are: headroom, held_out, held_out_routers, leaderboard, "
    ):
        load_panel("held-in")
    with pytest.raises(PanelError, match=r"^there is no file mine\.yaml; it should be a YAML file with trace, device"):
        load_panel("mine.yaml")
