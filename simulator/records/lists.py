"""Numbers in a row of an array, one of which is found, or taken out without changing the order of the others."""

from servegym.simulator.compilation.kernels import kernel


@kernel
def place_of(numbers, number):
    """Where a number is that is there."""
    place = 0
    while numbers[place] != number:
        place += 1
    return place


@kernel
def drop_first(numbers):
    """Drop the first of these: the others move up. (Of a slice, which is plain to the compiler: several at a time.)"""
    for i in range(numbers.shape[0] - 1):
        numbers[i] = numbers[i + 1]


@kernel
def drop(numbers, length, number):
    """Take a number out of numbers[:length]."""
    drop_first(numbers[place_of(numbers, number) : length])
