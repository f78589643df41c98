"""What a learned scheduler keeps of its last decision, so as not to decide twice in one."""

from servegym.simulator.compilation import kernel

NOW_S, ROUNDS, ITERATIONS, TASK = range(4)  # rounds: and one; 0: nothing has been decided
KEPT = 4


@kernel
def is_same_decision(memory, now_s, engine):
    """Whether this decision is the last one again: a batch for which memory was given up is formed anew, and an agent
    is asked once for all of it. Notes the decision."""
    rounds, iterations, task = engine.rounds + 1.0, float(engine.iterations), float(engine.running_task)
    same = memory[NOW_S] == now_s and memory[ROUNDS] == rounds and memory[ITERATIONS] == iterations
    same = same and memory[TASK] == task
    memory[NOW_S], memory[ROUNDS], memory[ITERATIONS], memory[TASK] = now_s, rounds, iterations, task
    return same
