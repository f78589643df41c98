"""Parts of a learned policy's numbers, and the key of its last decision, so that it calls the network once for it."""

from servegym.baselines.learned.forward import COUNT, ROOM
from servegym.policy import kernel

NOW_S, ROUNDS, ITERATIONS, TASK = range(4)  # ROUNDS: engine.rounds + 1; 0: no decision yet
KEPT = 4


@kernel
def split(numbers, size):
    """Return the first `size` numbers, and the others."""
    return numbers[:size], numbers[size:]


@kernel
def split_network(numbers):
    """Return a network with its working memory, and the numbers after it."""
    return split(numbers, int(numbers[COUNT]) + int(numbers[ROOM]))


@kernel
def is_same_decision(memory, now_s, engine):
    """Return whether this call belongs to the same decision as the last one, and keep its key.

    After evictions a batch is formed anew, but an agent acts once per decision.
    """
    rounds, iterations, task = engine.rounds + 1.0, float(engine.iterations), float(engine.running_task)
    same = memory[NOW_S] == now_s and memory[ROUNDS] == rounds and memory[ITERATIONS] == iterations
    same = same and memory[TASK] == task
    memory[NOW_S], memory[ROUNDS], memory[ITERATIONS], memory[TASK] = now_s, rounds, iterations, task
    return same
