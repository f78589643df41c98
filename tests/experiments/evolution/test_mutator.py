"""The mutator changes the evolve block and the budget, nothing else, and from the same numbers in the same way."""

import ast

import numpy as np
import pytest

from experiments.evolution.mutator import BEGIN, END, mutated
from experiments.evolution.scripted import TASK

START = (TASK / "initial_program.py").read_text("utf-8")


def outside(program: str) -> list[str]:
    head, rest = program.split(BEGIN)
    return [line for line in (head + rest.split(END)[1]).splitlines() if "max_num_batched_tokens" not in line]


def test_programs_stay_programs_and_differ_in_the_block() -> None:
    random, program, seen = np.random.default_rng(3), START, set[str]()
    for _ in range(60):
        program = mutated(program, random)
        ast.parse(program)
        assert outside(program) == outside(START) and "    return key" in program
        seen.add(program)
    assert len(seen) > 30


def test_the_same_numbers_give_the_same_programs() -> None:
    one, other = (mutated(START, np.random.default_rng(5)) for _ in range(2))
    assert one == other
    with pytest.raises(ValueError, match="EVOLVE-BLOCK-START"):
        mutated("x = 1.0", np.random.default_rng(5))
