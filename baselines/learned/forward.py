"""Compiled forward pass of a network of dense layers.

A network is one array of float64: a header (HEADER, then the size of each layer's output), the weights and biases layer
by layer, and working memory. A layer's weights are stored input by input, so that the inner loop runs over outputs
without a reduction: it vectorises, and its result does not depend on the vector width.
"""

import numpy as np

from servegym.policy import kernel
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.records.signatures import NUMBERS, array, types

# count: numbers before the working memory. room: numbers of working memory, four times the widest layer. shared: DENSE,
# SHARED_BY_SLOTS or JOINT. whole: numbers of an observation that all slots share (all, without slots). squashed: 1:
# outputs go through tanh.
HEADER = ("count", "room", "shared", "relu", "squashed", "whole", "slot", "slots", "layers")
COUNT, ROOM, SHARED, RELU, SQUASHED, WHOLE, SLOT, SLOTS, LAYERS = range(len(HEADER))
SIZES = len(HEADER)
DENSE, SHARED_BY_SLOTS, JOINT = range(3)

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, which is then in the lowest bits


@kernel
def hyperbolic_tangent(x):
    """Return tanh(x) to 2e-16, by exp(-2|x|) = 2^k exp(r), |r| <= ln 2 / 2, with the same bytes on any machine."""
    t = -2.0 * min(abs(x), 20.0)
    rounded = np.float64(t * LOG2_E + ROUND)
    k = rounded - ROUND
    r = (t - k * LN2_HIGH) - k * LN2_LOW
    p = 1.0 + r * (1.0 / 13.0)
    p = 1.0 + r * (1.0 / 12.0) * p
    p = 1.0 + r * (1.0 / 11.0) * p
    p = 1.0 + r * (1.0 / 10.0) * p
    p = 1.0 + r * (1.0 / 9.0) * p
    p = 1.0 + r * (1.0 / 8.0) * p
    p = 1.0 + r * (1.0 / 7.0) * p
    p = 1.0 + r * (1.0 / 6.0) * p
    p = 1.0 + r * (1.0 / 5.0) * p
    p = 1.0 + r * (1.0 / 4.0) * p
    p = 1.0 + r * (1.0 / 3.0) * p
    p = 1.0 + r * 0.5 * p
    p = 1.0 + r * p
    power = np.int64((rounded.view(np.int64) << np.int64(52)) + (np.int64(1023) << np.int64(52)))
    e = p * power.view(np.float64)
    return np.copysign((1.0 - e) / (1.0 + e), x)


@kernel
def copy(numbers, to):
    """to[:] = numbers"""
    for j in range(to.shape[0]):
        to[j] = numbers[j]


@kernel
def add_inputs(weights, inputs, outputs):
    """outputs += W inputs; weights: W, input by input. Four inputs per pass save reads and writes of outputs."""
    n, m = outputs.shape[0], inputs.shape[0]
    for group in range(m // 4):
        i = 4 * group
        a, b, c, d = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
        first, second = weights[i * n : (i + 1) * n], weights[(i + 1) * n : (i + 2) * n]
        third, fourth = weights[(i + 2) * n : (i + 3) * n], weights[(i + 3) * n : (i + 4) * n]
        for j in range(n):
            outputs[j] += (first[j] * a + second[j] * b) + (third[j] * c + fourth[j] * d)
    for i in range(m - m % 4, m):
        x, row = inputs[i], weights[i * n : (i + 1) * n]
        for j in range(n):
            outputs[j] += row[j] * x


@kernel
def activate(numbers, relu):
    """Apply relu or tanh in place."""
    for j in range(numbers.shape[0]):
        numbers[j] = max(numbers[j], 0.0) if relu else hyperbolic_tangent(numbers[j])


@kernel
def first_output(weights, biases, inputs):
    """Return the first output of a layer, summed in the order of `add_inputs`."""
    n, m, output = biases.shape[0], inputs.shape[0], biases[0]
    for group in range(m // 4):
        i = 4 * group
        a, b, c, d = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
        first, second = weights[i * n], weights[(i + 1) * n]
        third, fourth = weights[(i + 2) * n], weights[(i + 3) * n]
        output += (first * a + second * b) + (third * c + fourth * d)
    for i in range(m - m % 4, m):
        output += weights[i * n] * inputs[i]
    return output


@kernel
def later_layers(network, at, first, out):
    """Run the layers after the first. first: outputs of the first layer before activation; network[at:]: the weights.

    `first` is overwritten; behind it is room for the outputs of one more layer. out: receives the outputs before
    squashing; only the first output if it has room for one.
    """
    layers, relu = int(network[LAYERS]), network[RELU] == 1.0
    here, there, size = first, first + int(network[ROOM]) // 4, int(network[SIZES])
    for layer in range(1, layers):
        inputs = network[here : here + size]
        activate(inputs, relu)
        n = int(network[SIZES + layer])
        weights, biases = network[at : at + size * n], network[at + size * n : at + size * n + n]
        if layer == layers - 1 and out.shape[0] == 1:
            out[0] = first_output(weights, biases, inputs)
            return
        outputs = network[there : there + n]
        copy(biases, outputs)
        add_inputs(weights, inputs, outputs)
        at += size * n + n
        here, there, size = there, here, n
    for j in range(min(size, out.shape[0])):
        out[j] = network[here + j]


@kernel
def squash(network, outputs):
    """Apply tanh to the outputs, if the network has it."""
    if network[SQUASHED] == 1.0:
        activate(outputs, False)


@kernel
def forward(network, observation, filled, out):
    """Write the network's outputs for an observation (float32) into out (float64).

    A dense network's outputs do not depend on `filled`. A shared network writes the outputs of the first `filled`
    slots, slot by slot, and 0 for the other slots. A joint network is also evaluated on an empty slot: `out` begins
    with the outputs of the empty slot without the first one, followed by the first output of each slot.
    network: header, weights and working memory.
    """
    whole, slot, slots, layers = int(network[WHOLE]), int(network[SLOT]), int(network[SLOTS]), int(network[LAYERS])
    n, m, room, at = int(network[SIZES]), int(network[SIZES + layers - 1]), int(network[COUNT]), SIZES + layers
    # Quarters of the working memory: first layer of the whole, outputs of two layers, outputs of the empty slot.
    part = int(network[ROOM]) // 4
    start, first = network[room : room + n], room + part
    copy(network[at + (whole + slot) * n : at + (whole + slot) * n + n], start)
    add_inputs(network[at : at + whole * n], observation[:whole], start)
    own = network[at + whole * n : at + (whole + slot) * n]
    at += (whole + slot) * n + n
    if network[SHARED] != SHARED_BY_SLOTS:
        answer = out[:m] if network[SHARED] == DENSE else network[room + 3 * part : room + 3 * part + m]
        copy(start, network[first : first + n])
        later_layers(network, at, first, answer)
        squash(network, answer)
        if network[SHARED] == DENSE:
            return
        copy(answer[1:], out[: m - 1])
    outputs = out[m - 1 :] if network[SHARED] == JOINT else out
    each = 1 if network[SHARED] == JOINT else m
    for k in range(filled):
        copy(start, network[first : first + n])
        add_inputs(own, observation[whole + k * slot : whole + (k + 1) * slot], network[first : first + n])
        later_layers(network, at, first, outputs[k * each : (k + 1) * each])
    squash(network, outputs[: filled * each])
    for j in range(filled * each, slots * each):
        outputs[j] = 0.0


@compiled(types.void(NUMBERS, array(types.float32), types.int64, NUMBERS))
def forward_once(network, observation, filled, out):
    """Call `forward` from Python."""
    forward(network, observation, filled, out)
