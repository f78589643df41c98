"""Formulas: text and tree; what the stack machine makes of them; orders by hand; whole runs; files."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.artifact import ArtifactError
from servegym.baselines.learned.artifact import load, save
from servegym.baselines.learned.expression import MOST_NODES, NAMES, Expression, described, number, parsed
from servegym.baselines.learned.formula import by_formula
from servegym.baselines.learned.stack_machine import BINARY, FEATURES, evaluate, write_features
from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from servegym.simulator.compilation import plain_function
from servegym.simulator.types import GROUP, RANK
from tests.baselines.learned.cases import bytes_of, check_served, served_by
from tests.simulator.forming import decode, linear, ranked, state, waiting_for_a_batch

MODEL = linear(c_p=1, b_d=1, t_c=0.25)
VALUES = {name: float(i + 1) for i, name in enumerate(NAMES)}  # of features, for sums by hand

numbers = st.floats(-1e6, 1e6).map(number)
leaves = numbers | st.sampled_from(NAMES).map(Expression)
trees = st.recursive(
    leaves,
    lambda parts: (
        st.builds(lambda what, a, b: Expression(what, 0.0, (a, b)), st.sampled_from(BINARY), parts, parts)
        | parts.map(lambda a: Expression("sqrt", 0.0, (a,)))
    ),
    max_leaves=12,
)


def value_of(text: str | Expression, **features: float) -> float:
    program = (parsed(text) if isinstance(text, str) else text).program()
    seen = np.array([(VALUES | features)[name] for name in NAMES])
    return evaluate(program[1:], seen, np.zeros(int(program[0])))


@given(trees)
def test_a_text_is_read_back_as_the_tree_it_was_written_from(tree):
    assert parsed(str(tree)) == tree


@pytest.mark.nojit
@given(trees, st.lists(st.floats(-1e30, 1e30), min_size=len(NAMES), max_size=len(NAMES)))
def test_no_formula_gives_nan_or_infinity(tree, features):
    assert math.isfinite(value_of(tree, **dict(zip(NAMES, features, strict=True))))


@pytest.mark.nojit
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7", 7.0),
        ("left", VALUES["left"]),
        ("exec_s - slack_s - 1", 4 - 5 - 1),
        ("exec_s - (slack_s - 1)", 0.0),
        ("next_gain / exec_s * 2", 2 / 4 * 2),
        ("next_gain / (exec_s * 2)", 2 / 8),
        ("-2.5 * exec_s", -10.0),
        ("-exec_s", -4.0),
        ("min(exec_s, 3) + max(exec_s, 30)", 33.0),
        ("sqrt(exec_s) + sqrt(-9)", 5.0),  # of the amount
        ("1 / (exec_s - 4)", 1e9),  # nothing is divided by less than 1e-9
        ("1 / (0 - 1e-12)", -1e9),
        ("1e20 * 1e20", 1e30),  # and nothing is larger than that
        ("0 - 1e20 * 1e20", -1e30),
    ],
)
def test_values_by_hand(text, wanted):
    assert value_of(text) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exec", "there is no exec; there are value, next_gain,"),
        ("exec_s ** 2", "exec_s \\*\\* 2 is none; there are"),
        ("exec_s if decoding else 1", "is none"),
        ("__import__('os')", "is none"),
        ("min(exec_s)", "min takes 2"),
        ("sqrt(1, 2)", "sqrt takes 1"),
        ("exec_s +", "cannot be read"),
        ("True", "is none"),
        ("1e999", "inf is in it; numbers should be finite"),
        ("+".join(["exec_s"] * MOST_NODES), "parts; there should be 255 at most"),
        ("-" * 5000 + "1", "cannot be read"),
        ("1" * 9000, "9000 characters"),
    ],
)
def test_what_is_no_formula_is_refused(text, said):
    with pytest.raises(PolicyError, match=said):
        parsed(text)


def test_it_is_shown_with_units():
    lines = described(parsed("next_gain / max(exec_s, 0.001)")).splitlines()
    assert lines[0] == "next_gain / max(exec_s, 0.001)"
    assert [line.split()[:2] for line in lines[1:]] == [["next_gain", "gain"], ["exec_s", "s"]]


@pytest.mark.nojit
def test_what_is_seen_of_a_request():
    running = decode(ttft_slo_s=10, tpot_slo_s=1.5, arrival_s=1.0)
    request = waiting_for_a_batch(scheduler("edf"), running, model=MODEL).arrays.requests[0]
    rank, group = np.zeros(1, RANK).view(np.recarray)[0], np.zeros(1, GROUP).view(np.recarray)[0]
    rank.key, rank.exec_s = -6.0, 1.0
    features = np.full(len(FEATURES), np.nan)
    features[[NAMES.index("constant_s"), NAMES.index("pace_s"), NAMES.index("work_s")]] = 0.25, 2.0, 3.0
    plain_function(write_features)(request, rank, group, 4.0, features)  # Numba takes ranks in arrays only
    seen = dict(zip(NAMES, features, strict=True))
    # Its second token is due at 1 + 10 + 1.5 s, in 8.5 s; 1.25 s of that a batch takes.
    wanted = {"value": 6.0, "exec_s": 1.0, "slack_s": 7.25, "interval_s": 1.5, "left": 200.0, "emitted": 1.0,
              "context": 4.0, "held": 3.0, "decoding": 1.0, "constant_s": 0.25, "pace_s": 2.0, "work_s": 3.0,
              "next_gain": 1.0, "token_gain": 1.0, "wait_s": 4.0 - request.arrival_s}  # fmt: skip
    assert seen == pytest.approx(wanted)


@pytest.mark.nojit
def test_urgent_requests_go_by_the_formula_and_the_others_as_the_base_has_them():
    base = scheduler("expected-gain").with_settings(gamma=1.0, eta=0.5, output_tokens=10.0, reserve=0.0)
    queue = (
        state(1, ttft_slo_s=4, tpot_slo_s=1.5),
        state(2, ttft_slo_s=4.2, tpot_slo_s=1.5),
        state(1, ttft_slo_s=500, tpot_slo_s=1.5),  # not urgent
        state(1, ttft_slo_s=4, arrival_s=-300.0, tpot_slo_s=1.5),  # hopeless
    )
    own = ranked(base, *queue, model=MODEL).ranks
    made = ranked(by_formula(base, "exec_s + 100 * pace_s"), *queue, model=MODEL).ranks
    assert [tier for tier, _ in made] == [tier for tier, _ in own] == [0, 0, 1, own[3][0]]
    # A batch of all but the hopeless takes 4.25 s, and its budget is 4 s.
    assert made[:2] == [(0, -401.0), (0, -402.0)] and made[2] == own[2]


@pytest.mark.parametrize("base", ["slide-batching", "expected-gain", "slide-batching:variant=xllm"])
def test_the_formula_value_is_the_base(base):
    base = scheduler(base)
    for seed in range(3):
        made, own = (bytes_of(served_by(policy, seed)) for policy in (by_formula(base, "value"), base))
        statistics = made.pop("state.by_application")  # which not every base reads
        assert own.pop("state.by_application") in (statistics, b"") and made == own


def test_any_formula_serves_all():
    for formula in ("0 - value", "wait_s / exec_s", "sqrt(slack_s) * left - 1e9 * held"):
        check_served(served_by(by_formula(scheduler("expected-gain"), formula), engines=2))


def test_a_base_that_calls_nothing_urgent_is_refused():
    with pytest.raises(PolicyError, match="sarathi-fcfs ranks no requests as urgent"):
        by_formula(scheduler("sarathi-fcfs"), "value")


def test_a_file_says_it_as_text(tmp_path):
    base = scheduler("expected-gain").with_settings(gamma=3.0)
    policy = by_formula(base, "next_gain / max(exec_s, 0.001)")
    path = save(policy, tmp_path / "mine.json", {"how": "by hand"})
    document = json.loads(path.read_text())
    assert document["policies"]["scheduler"]["learned"] == {"way": "formula", "formula": policy.formula}
    assert not path.with_suffix(".safetensors").exists()
    read = load(path)
    assert (read.name, read.formula, read.weights) == ("learned:mine", policy.formula, policy.weights)
    assert bytes_of(served_by(read)) == bytes_of(served_by(policy))
    learned = document["policies"]["scheduler"]["learned"]
    for wrong, said in (({"formula": "exec"}, "there is no exec"), ({"controls": []}, "learned")):
        document["policies"]["scheduler"]["learned"] = learned | wrong
        path.write_text(json.dumps(document))
        with pytest.raises(ArtifactError, match=said):
            load(path)
