"""Genetic programming: a population of formulas; the better ones have children, by crossover and mutation.

Koza, "Genetic Programming", 1992: tournaments, crossover of subtrees, mutation; Luke and Panait, "Lexicographic
Parsimony Pressure", 2002: of two equally good formulas the shorter one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from servegym.baselines.learned.expression import NAMES, Expression, number
from servegym.baselines.learned.stack_machine import BINARY, OPERATIONS

LEAST_DIGITS = 3  # that numbers are rounded to, to be read
DEEPEST = 3  # of a random tree
CROSSOVER = 0.6  # share of children that have two parents; the others are mutants
MUTATIONS = 4


class Breeding:
    """The population, and who comes next. Pickled and loaded, it goes on unchanged.

    seeds: formulas that are in the first population; the others are mutants of them, and random. elites: how many of
    the best go on as they are. tournament: of so many the best is a parent. most_nodes: that a formula has.
    """

    def __init__(
        self, seeds: Sequence[Expression], population: int, elites: int, tournament: int, most_nodes: int, seed: int
    ):
        self.rng = np.random.default_rng(seed)
        self.size, self.elites, self.tournament, self.most_nodes = population, elites, tournament, most_nodes
        self.best = seeds[0]
        self.population = list(seeds)[:population]
        while len(self.population) < population:
            parent = seeds[int(self.rng.integers(len(seeds)))]
            new = self._mutant(parent) if self.rng.random() < 0.5 else random_tree(self.rng, DEEPEST)
            self.population.append(new)

    def candidates(self) -> list[Expression]:
        return self.population

    def learn(self, scores: np.ndarray) -> None:
        """float64[population]: how good they were, the higher the better. The next population takes their place."""
        order = sorted(range(self.size), key=lambda i: (-scores[i], self.population[i].size, i))
        self.best = self.population[order[0]]
        place = {i: rank for rank, i in enumerate(order)}
        children: list[Expression] = []
        for i in order:
            if len(children) < self.elites and self.population[i] not in children:
                children.append(self.population[i])
        while len(children) < self.size:
            mother, father = self._winner(place), self._winner(place)
            crosses = self.rng.random() < CROSSOVER
            children.append(self._child(mother, father) if crosses else self._mutant(mother))
        self.population = children

    @property
    def has_ended(self) -> bool:
        return False

    def said(self) -> dict[str, Any]:
        return {"formula": str(self.best), "nodes": self.best.size}

    def _winner(self, place: dict[int, int]) -> Expression:
        fighters = self.rng.integers(self.size, size=self.tournament)
        return self.population[min(fighters, key=lambda i: place[int(i)])]

    def _child(self, mother: Expression, father: Expression) -> Expression:
        """The mother with a part of hers replaced by one of the father's."""
        parts = list(father.nodes())
        part = parts[self.rng.integers(len(parts))]
        return self._within(replaced(mother, int(self.rng.integers(mother.size)), lambda _: part), mother)

    def _mutant(self, parent: Expression) -> Expression:
        """Another part, another number, another operation or feature; or a part of it alone."""
        kind, at = int(self.rng.integers(MUTATIONS)), int(self.rng.integers(parent.size))
        if kind == 0:
            return self._within(replaced(parent, at, lambda _: random_tree(self.rng, DEEPEST - 1)), parent)
        if kind == 1:  # a factor around a part: how much it counts
            factor = rounded(np.exp(self.rng.normal()))
            return self._within(replaced(parent, at, lambda part: scaled(part, factor)), parent)
        if kind == 2:
            return replaced(parent, at, self._swapped)
        return list(parent.nodes())[at]

    def _swapped(self, node: Expression) -> Expression:
        """The node with another operation; a feature by another one; a number by one near it."""
        if node.what == "":
            return number(rounded(node.value * np.exp(0.5 * self.rng.normal())))
        if not node.inputs:
            return Expression(NAMES[self.rng.integers(len(NAMES))])
        return node._replace(what=BINARY[self.rng.integers(len(BINARY))]) if node.what in BINARY else node.inputs[0]

    def _within(self, child: Expression, parent: Expression) -> Expression:
        return child if child.size <= self.most_nodes else parent


def scaled(part: Expression, factor: float) -> Expression:
    """factor times the part; of a number that is a number."""
    return number(rounded(part.value * factor)) if part.what == "" else Expression("*", 0.0, (number(factor), part))


def rounded(value: float) -> float:
    """To so few digits that one can read it."""
    return float(f"{value:.{LEAST_DIGITS}g}")


def random_tree(rng: np.random.Generator, deepest: int) -> Expression:
    """Operations at random, of features and, less often, of numbers from 0.001 to 1,000."""
    if deepest == 0 or rng.random() < 0.3:
        if rng.random() < 0.25:
            return number(rounded(10.0 ** rng.uniform(-3.0, 3.0)))
        return Expression(NAMES[rng.integers(len(NAMES))])
    what = OPERATIONS[rng.integers(len(OPERATIONS))]
    count = 2 if what in BINARY else 1
    return Expression(what, 0.0, tuple(random_tree(rng, deepest - 1) for _ in range(count)))


def replaced(tree: Expression, at: int, by: Callable[[Expression], Expression]) -> Expression:
    """The tree with node number `at`, as `nodes` counts, replaced by what a function makes of it."""
    if at == tree.size - 1:
        return by(tree)
    inputs, first = list(tree.inputs), 0
    for i, part in enumerate(inputs):
        if first <= at < first + part.size:
            inputs[i] = replaced(part, at - first, by)
        first += part.size
    return tree._replace(inputs=tuple(inputs))
