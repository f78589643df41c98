"""What a formula sees of a request, and the stack machine that works out its value: compiled once for all formulas.

A program is (code, value) of each step: push a number, push a feature, or replace the topmost one or two by what an
operation makes of them. Every result is kept within LARGEST, and nothing is divided by less than SMALLEST, so that no
formula gives nan. sqrt is that of the amount.
"""

from typing import NamedTuple

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.requests import is_decoding, next_deadline_s
from servegym.simulator.statistics import UNKNOWN_TOKENS, mean_length

LARGEST, SMALLEST = 1e30, 1e-9
BINARY = ("+", "-", "*", "/", "min", "max")
OPERATIONS = (*BINARY, "sqrt")
CONSTANT, FEATURE, ADD, SUBTRACT, MULTIPLY, DIVIDE, MIN, MAX, SQRT = range(2 + len(OPERATIONS))  # codes
FIRST_OPERATION = ADD


class Feature(NamedTuple):
    """What a formula can name. unit: as numbers have it; "": none."""

    name: str
    unit: str
    doc: str


FEATURES = (
    Feature("value", "gain/s", "what the base ranks it by: its own formula"),
    Feature("next_gain", "gain", "of its next token"),
    Feature("token_gain", "gain", "of each later token"),
    Feature("exec_s", "s", "estimated work before its next token"),
    Feature("slack_s", "s", "to spare until the deadline of its next token, if it ran at once"),
    Feature("interval_s", "s", "between deadlines of its later tokens; 0: it has one deadline"),
    Feature("wait_s", "s", "since it arrived"),
    Feature("left", "tokens", "it is expected to have left: the mean answer of its application"),
    Feature("emitted", "tokens", "out so far"),
    Feature("context", "tokens", "of its prompt, and out"),
    Feature("held", "tokens", "whose KV it holds"),
    Feature("decoding", "", "1: all it lacks is its next token; else 0"),
    Feature("constant_s", "s", "that a batch takes with nothing in it"),
    Feature("pace_s", "s", "that a batch takes: all that is not left out, or its budget"),
    Feature("work_s", "s", "of all that is not left out"),
)
(
    VALUE, NEXT_GAIN, TOKEN_GAIN, EXEC_S, SLACK_S, INTERVAL_S, WAIT_S, LEFT, EMITTED, CONTEXT, HELD, DECODING,
    CONSTANT_S, PACE_S, WORK_S,
) = range(len(FEATURES))  # fmt: skip


@kernel
def bounded(x):
    return min(max(x, -LARGEST), LARGEST)


@kernel
def write_features(request, rank, group, now_s, features):
    """Of a request, but for those of the batch (CONSTANT_S, PACE_S, WORK_S), which are there already."""
    first = request.emitted_tokens == 0
    features[VALUE] = bounded(-rank.key)
    features[NEXT_GAIN] = request.first_token_gain if first else request.decode_token_gain
    features[TOKEN_GAIN] = request.decode_token_gain
    features[EXEC_S] = rank.exec_s
    features[SLACK_S] = bounded(next_deadline_s(request) - now_s - rank.exec_s - features[CONSTANT_S])
    features[INTERVAL_S] = request.token_interval_s
    features[WAIT_S] = now_s - request.arrival_s
    features[LEFT] = mean_length(group, UNKNOWN_TOKENS)
    features[EMITTED] = request.emitted_tokens
    features[CONTEXT] = request.prompt_tokens + request.emitted_tokens
    features[HELD] = request.computed_tokens
    features[DECODING] = 1.0 if is_decoding(request) else 0.0


@kernel
def done(code, a, b):
    """What an operation of two makes of a and b."""
    if code == ADD:
        return a + b
    if code == SUBTRACT:
        return a - b
    if code == MULTIPLY:
        return a * b
    if code == MIN:
        return min(a, b)
    if code == MAX:
        return max(a, b)
    return a / (b if abs(b) >= SMALLEST else np.copysign(SMALLEST, b))


@kernel
def evaluate(steps, features, stack):
    """The value of a program, float64[2 x steps]. stack: as long as there are steps."""
    top = -1
    for i in range(steps.shape[0] // 2):
        code = int(steps[2 * i])
        if code == CONSTANT:
            top += 1
            stack[top] = steps[2 * i + 1]
        elif code == FEATURE:
            top += 1
            stack[top] = features[int(steps[2 * i + 1])]
        elif code == SQRT:
            stack[top] = np.sqrt(abs(stack[top]))
        else:
            top -= 1
            stack[top] = bounded(done(code, stack[top], stack[top + 1]))
    return bounded(stack[0])
