"""How many tokens a stream brought, and when."""

import json

import pytest

from servegym.adapters.replay.records import Record
from servegym.adapters.replay.streams import LONGEST_EVENT, StreamError, TokenStream


def event(**document) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chunk(text="x", tokens=None, ids=None, finish=None) -> bytes:
    choice = {"text": text, "finish_reason": finish} | ({} if ids is None else {"token_ids": ids})
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
    return event(choices=[choice], **usage)


def fed(*pieces, wanted=100):
    """The record after pieces of (time, bytes)."""
    record = Record(0.0)
    stream = TokenStream(record, wanted)
    for at_s, data in pieces:
        stream.feed(data, at_s)
    return record, stream


def test_each_chunk_is_a_token_where_nothing_says_how_many():
    record, stream = fed((1, chunk()), (2, chunk()), (3, b"data: [DONE]\n\n"))
    assert record.token_s == [1, 2]
    assert stream.done


def test_usage_says_how_many_a_chunk_holds():
    record, _ = fed((1, chunk(tokens=1)), (2, chunk(tokens=4)), (3, chunk(text="", tokens=5)))
    assert record.token_s == [1, 2, 2, 2, 3]
    assert record.prompt_tokens == 9


def test_token_ids_say_it_too():
    record, _ = fed((1, chunk(ids=[5])), (2, chunk(ids=[5, 6])), (3, chunk(ids=[])))
    assert record.token_s == [1, 2, 2]


@pytest.mark.parametrize(("told", "times"), [(5, [1, 2, 2, 2, 2]), (2, [1, 2]), (1, [1]), (0, [])])
def test_a_usage_at_the_end_corrects_the_count(told, times):
    record, _ = fed((1, chunk()), (2, chunk()), (3, event(choices=[], usage={"completion_tokens": told})))
    assert record.token_s == times


def test_an_event_may_come_in_pieces_and_several_at_once():
    data = chunk(tokens=1) + b": a comment\n\n" + chunk(tokens=2)
    for cut in range(len(data)):
        record, _ = fed((1, data[:cut]), (2, data[cut:]))
        assert len(record.token_s) == 2
        assert set(record.token_s) <= {1, 2}


def test_no_more_tokens_than_were_asked_for():
    record, _ = fed((1, chunk(tokens=7)), wanted=3)
    assert record.token_s == [1, 1, 1]


@pytest.mark.parametrize(("data", "word"), [
    (event(error={"message": "out of\nmemory"}), "out of memory"),
    (event(error="gone"), "gone"),
    (b"data: {nonsense\n\n", "no JSON"),
    (b"data: [1, 2]\n\n", "no object"),
    (b"data: " + b"x" * (LONGEST_EVENT + 1), "more than"),
])  # fmt: skip
def test_what_is_no_completion_is_an_error(data, word):
    with pytest.raises(StreamError, match=word):
        fed((1, data))


@pytest.mark.parametrize(
    "document",
    [{"choices": 3}, {"choices": [7]}, {"usage": [1]}, {"choices": [], "usage": {"completion_tokens": "many"}}, {}],
)
def test_odd_events_bring_nothing(document):
    record, _ = fed((1, event(**document)))
    assert record.token_s == []
