"""The linear relaxation: work of requests in periods, against the time of engines (proof: docs/results/bounds.md)."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.evaluation.bounds.least_work import LeastWork
from servegym.evaluation.bounds.periods import Bins
from servegym.evaluation.bounds.program import Program
from servegym.evaluation.bounds.tokens import TINY, WorthyTokens

SMALL_ATTENTION = 0.005  # of the linear operators' time; a prompt with less attention is charged none
Node = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Group:
    """Engines that the same work may run on."""

    work: LeastWork
    engines: int


class _Load:
    """Charges to a group's engines: for each line and for KV memory, in each node of the tree of bins."""

    def __init__(self, program: Program, group: Group, bins: Bins):
        self.program, self.group, self.bins = program, group, bins
        self.lines = [(line.constant_s, group.engines * (1 + TINY)) for line in group.work.lines]
        self.charges: dict[Node, list[list[tuple[int, float]]]] = {}
        self.per_s = group.engines / group.work.iteration_s  # iterations that a second can hold
        self.iterations: dict[Node, int] = {}

    def charge(self, node: Node, variable: int, seconds: np.ndarray, memory: float) -> None:
        """One unit of the variable takes seconds[line] of engine time and holds so much KV in each iteration."""
        if node not in self.charges:
            self.charges[node] = [[] for _ in range(len(self.lines) + 1)]
        for terms, number in zip(self.charges[node], [*seconds, memory], strict=True):
            if number:
                terms.append((variable, float(number)))

    def iterations_in(self, node: Node) -> int:
        """The variable that counts the iterations in a node."""
        if node not in self.iterations:
            length_s = self.bins.node_length_s(*node)
            self.iterations[node] = self.program.variable(self.per_s * length_s * (1 + TINY))
            level, index = node
            if level > 0:
                terms = [(self.iterations[node], -1.0)]
                terms += [(self.iterations_in(child), 1.0) for child in self._children(level, index)]
                self.program.balanced(terms)
        return self.iterations[node]

    def _children(self, level: int, index: int) -> list[Node]:
        """The two halves of a node; a half beyond the last bin is left out."""
        both = [(level - 1, 2 * index), (level - 1, 2 * index + 1)]
        return [child for child in both if self.bins.node_length_s(*child) > 0]

    def close(self) -> None:
        """Add the rows that bound the charges by time and memory, for each node with charges and all below it.

        A node's use is its own charges and its children's; that of a bin includes the constants of its iterations.
        """
        levels: dict[int, set[int]] = {}
        for level, index in self.charges:
            levels.setdefault(level, set()).add(index)
        for level in range(max(levels, default=0), 0, -1):
            below = {child[1] for index in levels.get(level, ()) for child in self._children(level, index)}
            levels.setdefault(level - 1, set()).update(below)
        used: dict[Node, list[int]] = {}
        for level in sorted(levels):
            for index in sorted(levels[level]):
                used[level, index] = self._close_node((level, index), used)

    def _close_node(self, node: Node, used: dict[Node, list[int]]) -> list[int]:
        level, index = node
        charges = self.charges.get(node, [[] for _ in range(len(self.lines) + 1)])
        length_s = self.bins.node_length_s(*node)
        most_iterations = self.per_s * length_s * (1 + TINY)
        constants = [(constant, most * length_s) for constant, most in self.lines]
        constants.append((-float(self.group.work.capacity_tokens), 0.0))
        variables = []
        for which, (constant, most) in enumerate(constants):
            terms = list(charges[which])
            if level == 0:
                terms.append((self.iterations_in(node), constant))
            else:
                terms += [(used[child][which], 1.0) for child in self._children(level, index)]
            use = self.program.variable(most, low=min(0.0, constant * most_iterations))
            self.program.balanced([*terms, (use, -1.0)])
            variables.append(use)
        return variables


def formulate(tokens: WorthyTokens, groups: list[Group], bins: Bins, fineness: int) -> Program:
    """The relaxation. groups: one for all work, or one for prompts and one for later tokens."""
    program = Program()
    loads = [_Load(program, group, bins) for group in groups]
    for r in np.flatnonzero(tokens.worthy):
        _request(program, tokens, int(r), loads[0], loads[-1], bins, fineness)
    for load in loads:
        load.close()
    return program


def _request(
    program: Program, tokens: WorthyTokens, r: int, prefill: _Load, decode: _Load, bins: Bins, fineness: int
) -> None:
    """Variables and rows of one request. Shares of the prompt's tokens y and attention s; later tokens v; first h."""
    arrival_s, prompt = float(tokens.table["arrival_s"][r]), tokens.prompt_tokens[r : r + 1]
    nodes = bins.periods(arrival_s, float(tokens.last_deadline_s[r]), fineness)
    work, later_work = prefill.group.work, decode.group.work
    attention_s = float(work.prompt_attention_s(prompt)[0])
    linear_s = np.array([line.prefill_s for line in work.lines]) * prompt[0]
    if attention_s < SMALL_ATTENTION * linear_s.max():
        attention_s = 0.0
    token_s = np.array([later_work.later_token_s(line, prompt)[0] for line in later_work.lines])
    token_memory = float(later_work.later_token_memory(prompt)[0])
    alone_s = work.alone_s_per_token * prompt[0]
    in_parallel = prefill.group.engines > 1 or decode is not prefill
    first_bin = bins.to_bin(float(tokens.first_deadline_s[r]))
    y: list[int] = []
    s: list[int] = []
    v: list[int] = []
    before_first = 0
    suffix: list[tuple[int, int]] = []
    for at, node in enumerate(nodes):
        begin_s, length_s = bins.node_start_s(*node), bins.node_length_s(*node)
        end_s = begin_s + length_s
        own_s = (min(end_s, float(tokens.last_deadline_s[r])) - max(begin_s, arrival_s)) * (1 + TINY) + TINY * length_s
        own_s = max(own_s, 0.0)
        row = [(program.variable(1.0), alone_s)]
        y.append(row[0][0])
        prefill.charge(node, y[-1], linear_s, float(prompt[0]))
        if attention_s:
            s.append(program.variable(1.0))
            prefill.charge(node, s[-1], np.full(len(linear_s), attention_s), 0.0)
            row.append((s[-1], attention_s))
        if node[1] << node[0] <= first_bin:
            before_first = at + 1
        # Later tokens by the end of the period, at most one an iteration of the least length.
        paced = (end_s - tokens.prefilled_s[r]) / tokens.step_s * (1 + TINY)
        left = tokens.later_with_deadline_after(r, begin_s) if tokens.worthy_later[r] else 0
        if left and paced > 0:
            most = min(own_s / tokens.step_s, float(left))
            v.append(program.variable(most, worth=float(tokens.later_gain[r])))
            decode.charge(node, v[-1], token_s, token_memory)
            row.append((v[-1], tokens.step_s))
            program.at_most([(v[-1], 1.0), (decode.iterations_in(node), -1.0)], 0.0)
            by_now = min(float(tokens.worthy_later[r]), paced)
            program.at_most([*((x, 1.0) for x in v), *((x, -by_now) for x in y)], 0.0)
            suffix.append((len(v) - 1, left))
        if in_parallel or at == 0:
            program.at_most(row, own_s)
    for start, left in suffix:
        program.at_most([*((x, 1.0) for x in v[start:]), *((x, -float(left)) for x in y)], 0.0)
    if v and s:
        program.at_most([*((x, 1.0) for x in v), *((x, -float(tokens.worthy_later[r])) for x in s)], 0.0)
    for part in (y, s):
        if part:
            program.at_most([(x, 1.0) for x in part], 1.0)
    if tokens.first_worth[r] > 0:
        first = program.variable(1.0, worth=float(tokens.first_worth[r]))
        for part in (y, s):
            if part:
                program.at_most([(first, 1.0), *((x, -1.0) for x in part[:before_first])], 0.0)
