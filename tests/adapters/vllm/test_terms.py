"""Terms of requests: what clients may send, and that nothing they send can do harm."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.adapters.vllm.terms import MOST_GROUPS, MOST_SECONDS, MOST_WEIGHT, Defaults, TermsReader

DEFAULTS = Defaults(ttft_slo_s=2.0, tpot_slo_s=0.1, weight_of_priority={0: 4.0, 1: 2.0}, first_token_weight=3.0)
NAMES = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "ttft_slo_ms", "weight", "predicted_output_tokens", "urgency",
         "session_tokens", "client", "application")  # fmt: skip


def test_a_request_that_says_nothing_has_the_defaults() -> None:
    terms = TermsReader(DEFAULTS).read(None, 1)
    assert (terms.ttft_slo_s, terms.tpot_slo_s, terms.ttlt_slo_s, terms.weight) == (2.0, 0.1, math.inf, 2.0)
    assert math.isnan(terms.predicted_output_tokens)
    assert terms.malformed == 0
    assert TermsReader(DEFAULTS).read({}, 7).weight == 1.0


def test_what_a_request_says_counts() -> None:
    sent = {"ttft_slo_s": 0.5, "tpot_slo_ms": "30", "weight": 8, "predicted_output_tokens": 120, "emu_out_len": [1]}
    terms = TermsReader(DEFAULTS).read(sent, 0)
    assert (terms.ttft_slo_s, terms.tpot_slo_s, terms.weight, terms.predicted_output_tokens) == (0.5, 0.03, 8.0, 120.0)
    assert terms.malformed == 0


def test_a_ttlt_class_by_default_and_interactive_requests_in_it() -> None:
    reader = TermsReader(Defaults(ttlt_slo_s=60.0))
    assert reader.read({}, 0).ttlt_slo_s == 60.0
    assert reader.read({"ttft_slo_s": 1.0}, 0).ttlt_slo_s == math.inf
    assert reader.read({"ttft_slo_s": 1.0, "ttlt_slo_s": 9}, 0).ttlt_slo_s == 9.0


@pytest.mark.parametrize(
    "value",
    [-1, 0, 0.0, math.nan, math.inf, -math.inf, "nan", "inf", "", "x" * 10**6, "9" * 10**5, 10**400, True, None, [1.0],
     {"a": 1}, b"1", 1e30],
)  # fmt: skip
def test_malformed_values_are_counted_and_the_default_stands(value: object) -> None:
    terms = TermsReader(DEFAULTS).read({"ttft_slo_s": value, "weight": value}, 0)
    assert (terms.ttft_slo_s, terms.weight, terms.malformed) == (2.0, 4.0, 2)


@pytest.mark.parametrize("extra_args", [[1, 2], "text", 5, {1: 2, None: "x"}])
def test_malformed_xargs_as_a_whole(extra_args: object) -> None:
    terms = TermsReader(DEFAULTS).read(extra_args, 0)
    assert terms.ttft_slo_s == 2.0
    assert terms.malformed == (0 if isinstance(extra_args, dict) else 1)


def test_clients_are_told_apart_up_to_a_number_of_them() -> None:
    reader = TermsReader(DEFAULTS)
    numbers = [reader.read({"client": f"client-{n}"}, 0).client for n in range(3 * MOST_GROUPS)]
    assert numbers[: MOST_GROUPS - 2] == list(range(1, MOST_GROUPS - 1))
    assert set(numbers[MOST_GROUPS:]) == {MOST_GROUPS - 1}
    assert reader.read({"client": "client-3"}, 0).client == numbers[3]
    assert reader.read({"client": 10**5000}, 0).malformed == 1
    assert len(reader.clients) <= MOST_GROUPS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON, max_size=8) | JSON, st.integers())
def test_whatever_is_sent_there_are_terms(extra_args: object, priority: int) -> None:
    terms = TermsReader(DEFAULTS).read(extra_args, priority)
    assert 0 < terms.ttft_slo_s <= MOST_SECONDS
    assert 0 < terms.tpot_slo_s <= MOST_SECONDS
    assert 0 < terms.ttlt_slo_s <= MOST_SECONDS or terms.ttlt_slo_s == math.inf
    assert 0 < terms.weight <= MOST_WEIGHT
    assert terms.predicted_output_tokens > 0 or math.isnan(terms.predicted_output_tokens)
    assert 0 <= terms.client < MOST_GROUPS
    assert 0 <= terms.application < MOST_GROUPS
    assert 0 <= terms.urgency < 2**31
    assert 0 <= terms.session_tokens < 2**62


def test_defaults_come_from_the_artifact() -> None:
    workload = {"slo": "proserve", "ttft_slo_s": 1.5, "tpot_slo_s": 0.05, "ttlt_slo_s": None,
                "weight_of_priority": {"0": 2.0, "-1": 3}, "first_token_weight": 2.5}  # fmt: skip
    defaults = Defaults.of_workload(workload)
    assert defaults == Defaults(1.5, 0.05, math.inf, {0: 2.0, -1: 3.0}, 2.5)
    assert Defaults.of_workload(None) == Defaults()
