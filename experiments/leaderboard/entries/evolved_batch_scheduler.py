"""What fifty steps of a scripted mutator made of the start program of the task batch_scheduler, as it is."""

from servegym.simulator.policies.policy import Policy, register
from servegym.simulator.policies.scores import score
from servegym.simulator.records.requests import is_decoding, next_deadline_s

LIMITS = {"max_num_batched_tokens": 256}


# EVOLVE-BLOCK-START
@score(limits=LIMITS)
def evolved(request, engine, now_s, estimates, p):
    """request: what a scheduler knows of it; estimates.exec_s: seconds of work before its next token."""
    slack_s = next_deadline_s(request) - now_s - estimates.exec_s
    decoding = 2.0 if is_decoding(request) else 0.0
    key = slack_s - 0.1 * decoding
    key += 0.01 * (1.0 if slack_s < -1.0 else 0.0)
    key -= 0.01 * request.num_output_tokens / 100.0
    key -= 0.1 * (now_s - request.arrival_s)
    key += 100.0 * (1.0 if slack_s < -2.0 else 0.0)
    key += 1.0 * max(0.0, -slack_s)
    key += 0.1 * max(0.0, -slack_s)
    key += 0.01 * (now_s - request.arrival_s)
    return key


# EVOLVE-BLOCK-END

register(
    Policy("evolved", "scheduler", "Made by fifty steps of mutation.", "experiments/evolution/scripted.py", evolved)
)
