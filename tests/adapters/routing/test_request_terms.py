"""What is read of a request's body: prompts' lengths, SLOs, priorities; and what is counted of a stream."""

import json
import math
import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.adapters.routing import streams
from servegym.adapters.routing.refusals import Refused
from servegym.adapters.routing.request_terms import (
    DEFAULTS,
    chunks_of,
    defaults_of,
    parse,
    prompt_tokens,
    request_terms_of,
    session_of,
)
from servegym.adapters.routing.streams import EventCounter
from servegym.adapters.vllm.terms import Defaults, TermsReader

MINE = Defaults(1.0, 0.05, 60.0, {1: 2.0, -1: 8.0}, 3.0)


@pytest.mark.parametrize(("document", "chat", "tokens"), [
    ({"prompt": [1, 2, 3]}, False, 3),
    ({"prompt": "12345"}, False, 2),
    ({"prompt": ""}, False, 1),
    ({"prompt": ["1234", "12345"]}, False, 3),
    ({"prompt": [[1, 2], [3]]}, False, 3),
    ({"messages": [{"role": "user", "content": "1234"}]}, True, 5),
    ({"messages": [{"content": [{"type": "text", "text": "12345678"}, {"type": "image_url"}]}, {}]}, True, 10),
    ({"messages": [{"content": 5}]}, True, 4),
])  # fmt: skip
def test_lengths_of_prompts(document: dict, chat: bool, tokens: int) -> None:
    assert prompt_tokens(parse(json.dumps(document).encode(), chat), chat, 4.0) == tokens


def test_slos_are_those_of_the_body_then_of_headers_then_of_the_policys_file() -> None:
    reader = TermsReader(MINE)
    body = {"vllm_xargs": {"ttft_slo_s": 0.25, "tpot_slo_ms": 20, "weight": "5"}, "priority": 1}
    headers = {"x-servegym-ttft-slo-s": "9", "x-servegym-tpot-slo-s": "9", "x-servegym-priority": "3"}
    asked, more, wrong = request_terms_of(body, headers, 7, reader)
    assert (asked.prompt_tokens, asked.ttft_slo_s, asked.tpot_slo_s, asked.ttlt_slo_s) == (7, 0.25, 0.02, math.inf)
    assert (asked.priority, asked.weight, asked.first_weight) == (1, 5.0, 3.0)
    assert (more, wrong) == ({}, 0)
    headers = {"x-servegym-ttft-slo-s": "9", "x-servegym-priority": "-1", "x-servegym-weight": "much"}
    asked, more, wrong = request_terms_of({}, headers, 7, reader)
    assert (asked.ttft_slo_s, asked.tpot_slo_s, asked.ttlt_slo_s, asked.priority) == (9.0, 0.05, math.inf, -1)
    assert (asked.weight, more, wrong) == (8.0, {"vllm_xargs": {"ttft_slo_s": 9.0}, "priority": -1}, 1)
    asked, _, _ = request_terms_of({"priority": 1}, {}, 7, reader)
    assert (asked.ttlt_slo_s, asked.weight) == (60.0, 2.0), "one that says nothing of SLOs has the file's"


def test_defaults_are_the_workloads_of_an_artifact() -> None:
    workload = {"slo": "proserve", "ttft_slo_s": 2, "ttlt_slo_s": None, "weight_of_priority": {"1": 2.0},
                "first_token_weight": 4.0}  # fmt: skip
    assert defaults_of(workload) == Defaults(2.0, 0.05, math.inf, {1: 2.0}, 4.0)
    assert defaults_of(None) == DEFAULTS


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "weight", "ttft_slo_ms", "predicted_output_tokens")


headers_of = st.dictionaries(
    st.sampled_from([f"x-servegym-{name.replace('_', '-')}" for name in (*NAMES, "priority")]), st.text(max_size=50)
)


@given(st.dictionaries(st.sampled_from(NAMES), anything) | anything, anything, headers_of)
def test_whatever_is_said_what_is_asked_is_in_range(xargs: object, priority: object, headers: dict[str, str]) -> None:
    document = {"vllm_xargs": xargs, "priority": priority}
    asked, more, wrong = request_terms_of(document, headers, 7, TermsReader(MINE))
    assert 0 < asked.ttft_slo_s < 1e7 and 0 < asked.tpot_slo_s < 1e7 and asked.ttlt_slo_s > 0
    assert 0 < asked.weight <= 1e6 and -(2**31) <= asked.priority < 2**31
    assert math.isnan(asked.predicted_output_tokens) or asked.predicted_output_tokens > 0
    assert more.keys() <= {"vllm_xargs"} and 0 <= wrong <= 14
    json.dumps(more.get("vllm_xargs", {}))


@given(st.binary(max_size=60) | anything.map(lambda value: json.dumps(value).encode()), st.booleans())
def test_a_body_is_a_request_or_refused(body: bytes, chat: bool) -> None:
    try:
        document = parse(body, chat)
    except Refused as error:
        assert len(str(error)) <= 250 and "\n" not in str(error)[:40]
        return
    assert prompt_tokens(document, chat, 4.0) >= 1


def test_chunks_are_equal_up_to_where_prompts_are() -> None:
    def chunks(prompt: object) -> list[int]:
        return chunks_of({"prompt": prompt}, False, 4, 2.0)

    one, other = chunks([1, 2, 3, 4, 5, 6, 7, 8, 9]), chunks([1, 2, 3, 4, 0, 6, 7, 8])
    assert len(one) == len(other) == 2 and one[0] == other[0] and one[1] != other[1]
    assert len(chunks("12345678" * 2)) == 2, "8 characters are 4 tokens"
    assert chunks("12345678")[0] == chunks("12345678abc")[0]
    assert chunks([[1, 2, 3, 4], [5]]) == [] and chunks([1, 2, 3]) == []
    assert chunks([1, 2, 3, 4] * 2)[0] != chunks([1, 2, 3, 4] * 2)[1], "the same chunk further back is another"
    assert all(0 <= number < 2**31 for number in one)
    assert chunks([2**70] * 8) == [], "no id, and no reason to fail"
    assert len(chunks("\ud800" * 8)) == 1
    assert len(chunks_of({"prompt": "abc"}, False, 16, 0.001)) == 3, "a chunk has a character at least"


def test_a_session_is_said_by_a_header_or_in_the_body() -> None:
    said = session_of({}, {"x-session-id": "ann"})
    assert 0 <= said < 2**31
    assert said == session_of({"user": "ann"}, {}) == session_of({"prompt_cache_key": "ann", "user": "bob"}, {})
    assert said == session_of({"user": "bob"}, {"x-session-id": "ann"}) != session_of({"user": "bob"}, {})
    for nothing in ({}, {"user": ""}, {"user": 7}, {"user": None}, {"user": ["ann"]}):
        assert session_of(nothing, {}) == -1
    assert request_terms_of({"user": "ann"}, {}, 7, TermsReader(MINE))[0].session == said


# Streams


def fed(*parts: bytes) -> tuple[int, bool, bool]:
    counter = EventCounter()
    total = sum(counter.feed(part) for part in parts)
    assert total == counter.tokens
    return counter.tokens, counter.done, counter.failed


TEXT = b'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = b'data: {"choices": [{"text": "ab"}], "usage": {"completion_tokens": 3}}\n\n'


@pytest.mark.parametrize(("data", "tokens"), [
    (TEXT * 3, 3),
    (USAGE, 3),
    (USAGE + b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n', 3),
    (b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n', 0),
    (b'data: {"choices": [{"delta": {"content": "x"}}, {"delta": {"reasoning_content": "y"}}]}\n\n', 2),
    (b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n', 0),
    (b": ping\n\nevent: x\ndata: 5\n\ndata: {\n\ndata: [" + b"[" * 100_000 + b"\n\n", 0),
    (b'data: {"choices": {"a": 1}, "usage": {"completion_tokens": "9"}}\n\ndata: {"choices": [1, null]}\n\n', 0),
    (b"data: " + b"x" * 3_000_000 + b"\n\n" + TEXT, 1),
])  # fmt: skip
def test_tokens_of_a_stream(data: bytes, tokens: int) -> None:
    assert fed(data) == (tokens, False, False)
    assert fed(*[data[k : k + 7] for k in range(0, min(len(data), 10_000), 7)], data[10_003:])[0] <= tokens


WORDS = st.sampled_from(["", "a", '"', 'say "text": "b"', "\\", "\n", '"usage":{}', "\u00e9"])
DELTAS = st.fixed_dictionaries({}, optional={"content": WORDS, "reasoning": WORDS})
ANSWERS = st.one_of(st.fixed_dictionaries({"text": WORDS}), st.fixed_dictionaries({"delta": DELTAS}), st.just({}))
MORE = st.fixed_dictionaries(
    {"index": st.integers(0, 1)},
    optional={
        "logprobs": st.sampled_from([None, {"content": [{"token": "a"}]}]),
        "finish_reason": st.sampled_from([None, "stop"]),
    },
)  # fmt: skip
CHOICES = st.builds(lambda answer, more: answer | more, ANSWERS, MORE)
EVENTS = st.fixed_dictionaries(
    {"id": st.just("cmpl-0"), "choices": st.lists(CHOICES, max_size=2)},
    optional={"usage": st.sampled_from([None, {"completion_tokens": 3}]), "error": st.sampled_from([None, {}])},
)


@given(EVENTS, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_without_json_it_counts_the_same(event: dict, separators: tuple[str, str]) -> None:
    line, read = b"data: " + json.dumps(event, separators=separators).encode() + b"\n\n", EventCounter()
    with mock.patch.object(streams, "PLAIN", re.compile(rb"(?!)")):
        read.feed(line)
    assert fed(line) == (read.tokens, read.done, read.failed)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_however_it_is_cut(lengths: list[int]) -> None:
    data, parts = TEXT * 2 + USAGE + b'data: {"error": {}}\r\n\r\ndata: [DONE]\n\n', []
    for length in lengths:
        parts.append(data[:length])
        data = data[length:]
    assert fed(*parts, data) == (3, True, True)
