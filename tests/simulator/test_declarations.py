"""Parameters and scratch memory that kernels read by name."""

import pickle

import numpy as np
import pytest

from servegym.errors import PolicyError
from servegym.simulator.batching.ordering import sort
from servegym.simulator.compilation.digests import source_digest
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.policies.policy import Parameter, Parameters, Policy, Scratch
from servegym.simulator.records.signatures import router, scheduler
from tests.simulator.forming import ranked, state

pytestmark = pytest.mark.nojit

P = Parameters(
    Parameter("real", 0.5, "", 0, 9),
    Parameter("whole", 7, "", 0, 9, integer=True),
    Parameter("word", "b", "", choices=("a", "b", "c")),
)
OTHER = Parameters(Parameter("real", 0.5, "", 0, 9), Parameter("whole", 7.0, "", 0, 9))
S = Scratch("number", indices=("order", "more"), ranks=("ranks",))


@kernel
def halved(p):
    return p.whole // 2


@scheduler
def reads(context, ranks, limits):
    p = P.read(context)
    limits.max_num_batched_tokens = halved(p)
    limits.phase = p.word // 2
    for position in range(context.queue.shape[0]):
        ranks[position].tier = p.word
        ranks[position].key = p.real


@scheduler
def sorts(context, ranks, limits):
    """Longest prompt first, worked out in scratch memory."""
    s, n = S.read(context), context.queue.shape[0]
    for position in range(n):
        s.order[position] = position
        s.more[position] = -1
        s.ranks[position].tier = 0
        s.ranks[position].key = -float(context.requests[context.queue[position]].prompt_tokens)
    sort(s.order, s.ranks, n)
    for i in range(n):
        s.number[s.order[i]] = i
    for position in range(n):
        ranks[position].tier = s.more[position]
        ranks[position].key = s.number[position]


@scheduler
def reads_others(context, ranks, limits):
    ranks[0].key = OTHER.read(context).real


@router
def router_that_reads(context, request, route):
    route.engine = P.read(context).whole


READS = Policy("reads", "scheduler", "", "", reads, parameters=P)


def test_numbers_whole_numbers_and_words():
    found = ranked(READS.with_settings(real=2.5, whole=9, word="c"), state(1), state(1))
    assert found.ranks == [(2, 2.5), (2, 2.5)]
    assert (found.limits.max_num_batched_tokens, found.limits.phase) == (4, 1)
    values = P.read(type("Context", (), {"parameters": np.array([1.5, 3.0, 1.0, 99.0])}))
    assert values == (1.5, 3, 1) and isinstance(values.whole, int) and values.word == 1


def test_scratch_memory():
    policy = Policy("sorts", "scheduler", "", "", sorts, scratch=S)
    assert S.rows == 1 + 1 + 1 + 7
    assert ranked(policy, state(3), state(9), state(4), state(9)).ranks == [(-1, 3.0), (-1, 0.0), (-1, 2.0), (-1, 1.0)]


def test_what_a_policy_reads_has_to_be_its_own():
    with pytest.raises(PolicyError, match=r"reads the parameters real, whole \(test_declarations.py, line [0-9]+\), .* "
                                          "real, whole, word"):  # fmt: skip
        Policy("mine", "scheduler", "", "", reads_others, parameters=P)
    with pytest.raises(PolicyError, match=r"router mine reads .*, and is declared with the parameters \(none\)"):
        Policy("mine", "router", "", "", router_that_reads)
    with pytest.raises(PolicyError, match=r"mine reads Scratch\(number.*, and is declared with Scratch\(\)"):
        Policy("mine", "scheduler", "", "", sorts)
    Policy("mine", "scheduler", "", "", reads, parameters=(*P, Parameter("more", 1.0, "")))


@pytest.mark.parametrize("names", [("a-b",), ("_x",), ("x", "x"), ("",)])
def test_names_are_names_in_python_and_there_once(names):
    with pytest.raises(PolicyError):
        Parameters(*(Parameter(name, 1.0, "") for name in names))


def test_a_declaration_is_part_of_what_is_compiled(monkeypatch):
    """Its names and kinds are; defaults, bounds and words for readers are not."""
    before = source_digest(reads.py_func)
    names = reads.py_func.__globals__
    real, whole, word = P
    monkeypatch.setitem(names, "P", Parameters(Parameter("real", 8.0, "another text", 0, 99), whole, word))
    assert source_digest(reads.py_func) == before
    monkeypatch.setitem(names, "P", Parameters(whole, real, word))
    assert source_digest(reads.py_func) != before
    monkeypatch.setitem(names, "P", Parameters(real, Parameter("whole", 7.0, ""), word))
    assert source_digest(reads.py_func) != before


def test_pickling():
    for declared in (P, S, Parameters()):
        again = pickle.loads(pickle.dumps(declared))
        assert again == declared and again.layout == declared.layout and type(again) is type(declared)
