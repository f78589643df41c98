"""A mutator without a language model: it changes numbers of a program's evolve block, and adds and drops lines.

It knows what a key of the task batch_scheduler may be made of, and what a router may measure. From the same random
numbers come the same programs.
"""

import re

import numpy as np

BEGIN, END = "# EVOLVE-BLOCK-START", "# EVOLVE-BLOCK-END"
RETURN = "    return key"
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")
BUDGET = re.compile(r'(?<="max_num_batched_tokens": )\d+')
MEASURE = re.compile(r"(?<=measure = float\().+(?=\))")
DRAFTS = re.compile(r"(?<=most_drafts = min\()\d+")
MEASURES = ("requests", "prefills", "decodes", "prefill_tokens", "decode_tokens", "busy_until_s")
FACTORS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0)
BUDGETS = (256, 384, 512, 768, 1024, 2048)
SIZES = (0.01, 0.1, 1.0, 10.0, 100.0)
TERMS = (
    "estimates.exec_s",
    "request.weight",
    "request.prompt_tokens / 1000.0",
    "request.num_output_tokens / 100.0",
    "decoding",
    "(now_s - request.arrival_s)",
    "max(0.0, -slack_s)",
)
CONDITIONS = (
    "slack_s < 0.0",
    "slack_s < -1.0",
    "decoding > 0.0",
    "request.num_output_tokens > 0",
    "request.blocks > 0",
)


def mutated(program: str, random: np.random.Generator) -> str:
    """The program with one change, or two. Raises ValueError for one without an evolve block."""
    if BEGIN not in program or END not in program:
        raise ValueError(f"a program to mutate has {BEGIN} and {END}")
    for _ in range(int(random.integers(1, 3))):
        head, rest = program.split(BEGIN)
        block, tail = rest.split(END)
        ways = OF_KEYS if RETURN in block else OF_OTHERS
        way = ways[int(random.integers(len(ways)))]
        program = way(head, random) + BEGIN + block + END + tail if way is _another_budget else (
            head + BEGIN + way(block, random) + END + tail
        )  # fmt: skip
    return program


def _another_number(block: str, random: np.random.Generator) -> str:
    found = list(NUMBER.finditer(block))
    if not found:
        return block
    one = found[int(random.integers(len(found)))]
    value = float(one.group()) * FACTORS[int(random.integers(len(FACTORS)))]
    return block[: one.start()] + f"{value:.6f}".rstrip("0").ljust(len("0.0"), "0") + block[one.end() :]


def _another_term(block: str, random: np.random.Generator) -> str:
    return _with_line(block, f"    key {_amount(random)} * {TERMS[int(random.integers(len(TERMS)))]}")


def _another_case(block: str, random: np.random.Generator) -> str:
    condition = CONDITIONS[int(random.integers(len(CONDITIONS)))]
    return _with_line(block, f"    key {_amount(random)} * (1.0 if {condition} else 0.0)")


def _amount(random: np.random.Generator) -> str:
    return f"{('+=', '-=')[int(random.integers(2))]} {SIZES[int(random.integers(len(SIZES)))]}"


def _with_line(block: str, line: str) -> str:
    return block.replace(RETURN, f"{line}\n{RETURN}")


def _one_line_less(block: str, random: np.random.Generator) -> str:
    lines = block.split("\n")
    added = [place for place, line in enumerate(lines) if re.match(r"    key [+-]= ", line)]
    if added:
        del lines[added[int(random.integers(len(added)))]]
    return "\n".join(lines)


def _another_budget(head: str, random: np.random.Generator) -> str:
    return BUDGET.sub(str(BUDGETS[int(random.integers(len(BUDGETS)))]), head)


def _another_measure(block: str, random: np.random.Generator) -> str:
    return MEASURE.sub(f"snapshots[e].{MEASURES[int(random.integers(len(MEASURES)))]}", block)


def _another_depth(block: str, random: np.random.Generator) -> str:
    return DRAFTS.sub(str(int(random.integers(8))), block)


OF_KEYS = (_another_number, _another_term, _another_case, _one_line_less, _another_budget)
OF_OTHERS = (_another_number, _another_measure, _another_depth)
