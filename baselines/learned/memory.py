"""A learned policy's numbers, part by part; and the key of its last decision, so that it asks the network once."""

from servegym.baselines.learned.forward import COUNT, ROOM
from servegym.policy import kernel

NOW_S, ROUNDS, ITERATIONS, TASK = range(4)  # ROUNDS: plus 1; 0: nothing has been decided
KEPT = 4


@kernel
def split(numbers, size):
    """The first `size` numbers, and those behind them."""
    return numbers[:size], numbers[size:]


@kernel
def split_network(numbers):
    """A network with its room to work in, and the numbers behind it."""
    return split(numbers, int(numbers[COUNT]) + int(numbers[ROOM]))


@kernel
def is_same_decision(memory, now_s, engine):
    """Whether this call belongs to the same decision as the last one; notes the decision.

    After evictions the batch is formed anew, but an agent is asked once a decision.
    """
    rounds, iterations, task = engine.rounds + 1.0, float(engine.iterations), float(engine.running_task)
    same = memory[NOW_S] == now_s and memory[ROUNDS] == rounds and memory[ITERATIONS] == iterations
    same = same and memory[TASK] == task
    memory[NOW_S], memory[ROUNDS], memory[ITERATIONS], memory[TASK] = now_s, rounds, iterations, task
    return same
