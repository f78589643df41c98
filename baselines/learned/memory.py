"""Key of a learned scheduler's last decision, so that one decision does not ask the network twice."""

from servegym.policy import kernel

NOW_S, ROUNDS, ITERATIONS, TASK = range(4)  # ROUNDS: plus 1; 0: nothing has been decided
KEPT = 4


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
