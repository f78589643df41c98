"""Genetic programming: parts are replaced where they should be, formulas stay small, and what is asked for is found."""

import pickle

import numpy as np
import pytest

from servegym.baselines.learned.expression import MOST_NODES, Expression, parsed
from servegym.tuners.breeding import Breeding, random_tree, replaced


def bred(seed: int = 0, formulas: tuple[str, ...] = ("value", "next_gain / exec_s"), most_nodes: int = 15) -> Breeding:
    return Breeding([parsed(text) for text in formulas], 20, 2, 3, most_nodes, seed)


def test_the_part_with_that_number_is_replaced():
    tree, one = parsed("exec_s + left * min(slack_s, 2)"), Expression("wait_s")
    found = [str(replaced(tree, at, lambda part: one)) for at in range(tree.size)]
    assert found == [
        "wait_s + left * min(slack_s, 2.0)",
        "exec_s + wait_s * min(slack_s, 2.0)",
        "exec_s + left * min(wait_s, 2.0)",
        "exec_s + left * min(slack_s, wait_s)",
        "exec_s + left * wait_s",
        "exec_s + wait_s",
        "wait_s",
    ]


def test_random_trees_are_no_deeper_than_said_and_can_be_read_back():
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, 3) for _ in range(200)]
    assert max(tree.size for tree in trees) <= 15 and len(set(trees)) > 100
    assert all(parsed(str(tree)) == tree for tree in trees)


def test_the_first_population_holds_what_it_begins_with():
    population = bred().candidates()
    assert population[0] == parsed("value") and population[1] == parsed("next_gain / exec_s")
    assert len(population) == 20 and len(set(population)) > 10


def test_formulas_stay_as_small_as_said():
    search, rng = bred(most_nodes=9), np.random.default_rng(1)
    for _ in range(30):
        search.learn(rng.random(20))
    assert max(tree.size for tree in search.candidates()) <= 9 <= MOST_NODES


def test_the_best_is_kept_and_of_equal_ones_the_shorter():
    search = bred()
    population = search.candidates()
    scores = np.zeros(20)
    scores[7] = 1.0
    best = population[7]
    search.learn(scores)
    assert search.best == best and search.candidates()[0] == best
    search.learn(np.zeros(20))
    assert search.best.size == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_a_formula(seed):
    """The target uses two features and an operation that no formula of the first population need have together."""
    search, goal = bred(seed), {"slack_s", "held"}

    def score(tree: Expression) -> float:
        return len(goal & set(tree.used)) + any(part.what == "max" for part in tree.nodes()) - 0.01 * tree.size

    for _ in range(40):
        search.learn(np.array([score(tree) for tree in search.candidates()]))
    assert score(search.best) > 2.9 and search.best.size <= 7


def test_the_same_seed_breeds_the_same_also_after_it_was_put_away():
    first, second = bred(3), bred(3)
    for generation in range(5):
        scores = np.random.default_rng(generation).random(20)
        first.learn(scores)
        second.learn(scores)
        second = pickle.loads(pickle.dumps(second))
    assert first.candidates() == second.candidates() and first.said() == second.said()
