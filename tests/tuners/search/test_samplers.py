"""Samplers and pruners by name: the same seed draws the same, and what does not go together is refused."""

import pytest

from servegym.baselines import registry
from servegym.errors import SearchError
from servegym.tuners.search.choosing import Range, build_space
from servegym.tuners.search.samplers import SAMPLERS, check_search, first_points, make_pruner, make_sampler

SPACE = build_space({"scheduler": registry.scheduler("slide-batching")}, {"gamma": Range(), "eta": Range()})
DEFAULTS = {"scheduler.gamma": 1.0, "scheduler.eta": 0.045}


def drawn(sampler: str, seed: int, trials: int = 14) -> list[dict[str, float]]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=make_sampler(sampler, seed, DEFAULTS))
    for point in first_points(sampler, SPACE, DEFAULTS, trials, seed):
        study.enqueue_trial(point)
    study.optimize(lambda trial: -abs(SPACE.suggest(trial)["scheduler.gamma"] - 3.0), n_trials=trials)
    return [trial.params for trial in study.trials]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_one_seed_draws_the_same_and_begins_with_the_defaults(sampler):
    first = drawn(sampler, 1)
    assert first[0] == DEFAULTS
    assert first == drawn(sampler, 1)
    assert first != drawn(sampler, 2)


def test_a_grid_has_as_many_levels_as_fit():
    points = first_points("grid", SPACE, DEFAULTS, 11, seed=0)
    assert points[0] == DEFAULTS and len(points) == 1 + 3 * 3
    assert len({tuple(point.values()) for point in points[1:]}) == 9
    gammas = sorted({point["scheduler.gamma"] for point in points[1:]})
    assert gammas == pytest.approx([0.1, 1.0, 10.0])  # on the scale of the parameter
    words = build_space({"scheduler": registry.scheduler("slide-batching")}, {"load": Range()})
    assert len(first_points("grid", words, {"scheduler.load": "a"}, 20, seed=0)) == 1 + 3  # a word is tried once


@pytest.mark.parametrize(("arguments", "problem"), [
    (("annealing", "none"), "unknown sampler 'annealing'; there are tpe"),
    (("tpe", "median"), "unknown pruner 'median'; there are none, wilcoxon"),
    (("tpe", "wilcoxon", 2), "there are 2 objectives; take pruner none"),
    (("gp", "wilcoxon"), "gp learns from complete trials only"),
    (("cmaes", "none", 2), "sampler cmaes has one objective, not 2"),
    (("cmaes", "none", 1, True), "sampler cmaes knows no constraints"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(arguments, problem):
    sampler, pruner, *rest = arguments
    with pytest.raises(SearchError, match=problem):
        check_search(sampler, pruner, SPACE, *rest)


def test_cmaes_takes_two_numbers_or_more():
    policy = {"scheduler": registry.scheduler("slide-batching")}
    with pytest.raises(SearchError, match="searches two numbers or more"):
        check_search("cmaes", "none", build_space(policy, {"gamma": Range()}))
    with pytest.raises(SearchError, match=r"scheduler\.load is not"):
        check_search("cmaes", "none", build_space(policy, {"gamma": Range(), "eta": Range(), "load": Range()}))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SearchError, match=r"sampler gp needs a package that is not installed \(torch\)"):
        check_search("gp", "none", SPACE)


def test_a_grid_that_does_not_fit_is_refused():
    with pytest.raises(SearchError, match="has 4 points, and 3 trials are left after the defaults"):
        first_points("grid", SPACE, DEFAULTS, 4, seed=0)


def test_pruners_by_name():
    assert type(make_pruner("none", 4)).__name__ == "NopPruner"
    assert type(make_pruner("wilcoxon", 4)).__name__ == "WilcoxonPruner"
