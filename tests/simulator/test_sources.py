"""The text of a function is what `inspect.getsource` says it is."""

import inspect

import pytest

from servegym.simulator.compilation.digests import plain_function, reached_kernels
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.compilation.sources import source_of
from servegym.simulator.runs.loop import advance


@kernel
def ends_with_a_comment(x):
    """A text
    at the margin."""
    if x:
        return x  # behind a bracket
    else:
        pass
    # at its end


# of what comes next
@kernel
def ends_in_dead_code(x):
    return [x][0]
    x = """
at the margin"""


@kernel
def only_has_words(x):
    """Return nothing."""


def encloses():
    @kernel
    def within(x):
        return x

    return within


def test_every_kernel_of_the_event_loop():
    kernels = reached_kernels(advance)
    assert len(kernels) > 200
    different = [kernel.__name__ for kernel in kernels if source_of(kernel) != inspect.getsource(kernel)]
    assert different == []


@pytest.mark.parametrize("function", [ends_with_a_comment, only_has_words, encloses, encloses()])
def test_ends(function):
    plain = plain_function(function)
    assert source_of(plain) == inspect.getsource(plain)


def test_what_never_runs_may_be_cut():
    assert inspect.getsource(plain_function(ends_in_dead_code)).startswith(source_of(plain_function(ends_in_dead_code)))


def test_no_file():
    namespace: dict = {}
    exec("def twice(x):\n    return 2.0 * x", namespace)
    assert source_of(namespace["twice"]) is None
