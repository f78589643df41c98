"""KV events of live engines: by hand, as vLLM 0.33 has published them, and those that cannot be read."""

import asyncio
import dataclasses
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servegym.adapters.routing.handover import hand_over
from servegym.adapters.routing.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    address_of,
    follow,
    read_batch,
)
from servegym.adapters.routing.live import LiveEngine, LiveRouter
from servegym.adapters.routing.request_terms import chunks_of
from servegym.adapters.routing.rows import RequestTerms
from servegym.baselines.registry import router
from servegym.errors import RoutingError
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.memory.prefixes import known_tokens
from tests.adapters.routing.fakes import QUICK, FakeEngine, proxied, stream, until
from tests.simulator.forming import linear

msgpack = pytest.importorskip("msgpack", reason="needs msgpack (the extra kv-events)")

MODEL = linear(c_p=2**-12, b_d=2**-10, t_c=2**-7)
FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("kv-events-*.json.gz"))
FULL, WINDOW, STATE = KvCacheGroup(4), KvCacheGroup(4, window=4), KvCacheGroup(4, state=True)
IDS = list(range(100, 120))


def live(groups: Sequence[KvCacheGroup] = (), blocks: int = 50, block_tokens: int = 4, chunk: int = 4) -> LiveRouter:
    engines = [
        LiveEngine(name, MODEL, blocks, block_tokens, prefix_cache_tokens=None, kv_groups=tuple(groups))
        for name in ("a", "b")
    ]
    return LiveRouter(router("kv-aware"), engines, (0.05,), chunk_tokens=chunk)


def known(live_router: LiveRouter, ids: list[int], e: int = 0, adapter: str = "") -> int:
    """Of a prompt of these ids: how many tokens the router takes engine e to have."""
    chunks = chunks_of({"prompt": ids}, False, live_router.known.prefixes.chunk_tokens, 4.0, adapter)
    r = live_router.arrive(0.0, RequestTerms(len(ids), 1.0, 0.05), chunks)
    with live_router.rows.chunks_of(r):
        found = int(known_tokens(live_router._known_with(live_router.rows.chunks), live_router.rows.table[r], r, e))
    live_router.leave(0.0, r, finished=False)
    return found


def stored(first: int, count: int, group: int = 0, kept: Sequence[int] | None = None, size: int = 4) -> BlockStored:
    """Blocks first, first + 1, ... of IDS, of which a group keeps some."""
    names = [bytes([size * (i + 1)]) for i in range(first, first + count)]
    parent = bytes([size * first]) if first else None
    ids = tuple(IDS[size * first : size * (first + count)])
    return BlockStored(
        tuple(names[i] for i in (range(count) if kept is None else kept)), parent, ids, size, group, True
    )


def removed(end: int, group: int = 0) -> BlockRemoved:
    return BlockRemoved((bytes([end]),), group)


def after(events: Sequence[Event], groups: Sequence[KvCacheGroup] = (), ids: list[int] = IDS) -> int:
    one = live(groups)
    one.note_events(0, events)
    assert known(one, ids, 1) == 0
    return known(one, ids)


def test_of_one_group_it_knows_what_is_stored_and_removed():
    assert after([stored(0, 3)]) == 12
    assert after([stored(0, 2), stored(2, 1)]) == 12
    assert after([stored(0, 5)]) == 19, "a token is computed anew"
    assert after([stored(0, 3)], ids=[*IDS[:9], 7, 7, 7]) == 8
    assert after([stored(0, 3), removed(8)]) == 4
    assert after([stored(0, 3), AllBlocksCleared()]) == 0
    assert after([stored(2, 1)]) == 0, "of its parent nothing was heard"


def test_a_block_that_is_there_twice_is_there_until_both_are_gone():
    assert after([stored(0, 2), stored(0, 2), removed(8)]) == 8
    assert after([stored(0, 2), stored(0, 2), removed(8), removed(8)]) == 4


def test_a_hit_needs_all_groups():
    groups, both = (FULL, WINDOW), [stored(0, 4), stored(0, 4, 1, [2])]
    assert after(both, groups) == 12
    assert after([*both, removed(12)], groups) == 0, "full attention has 8 tokens, and the window none before them"
    assert after([*both, removed(12, 1)], groups) == 0
    assert after([*both, removed(16)], groups) == 12
    assert after(both, groups, IDS[:12]) == 0, "one token is computed anew"
    assert after([stored(0, 4)], groups) == 0
    assert after([stored(0, 4), stored(0, 4, 1, [2])], (FULL, STATE)) == 12


def test_groups_are_in_the_engines_order_and_its_events_in_any():
    """The window comes first, of the model and of the events: which block it keeps is known once the other has told."""
    assert after([stored(0, 4, 0, [2]), stored(0, 4, 1)], (WINDOW, FULL)) == 12
    assert after([stored(0, 4, 0, [2]), removed(12), stored(0, 4, 1)], (WINDOW, FULL)) == 0


def test_blocks_of_different_sizes():
    groups = (KvCacheGroup(8), WINDOW)
    assert after([stored(0, 2, size=8), stored(0, 4, 1, [1])], groups) == 8
    assert after([stored(0, 2, size=8), stored(0, 4, 1, [3])], groups) == 16
    assert after([stored(0, 2, size=8), stored(0, 4, 1, [2])], groups) == 0, "no end of a block of 8"
    assert after([stored(0, 1, size=8), stored(2, 1), stored(0, 4, 1)], groups) == 8, "half a block does not count"


def test_blocks_that_token_ids_do_not_tell_apart_are_left_out():
    assert after([dataclasses.replace(stored(0, 3), alike=False)]) == 0


def test_blocks_of_an_adapter_are_found_by_its_requests_only():
    one = live()
    one.note_events(0, [dataclasses.replace(stored(0, 3), adapter="a")])
    one.note_events(0, [dataclasses.replace(stored(3, 1), adapter="a")])
    found = {adapter: known(one, IDS, adapter=adapter) for adapter in ("", "a", "b")}
    assert found == {"": 0, "a": 16, "b": 0}


def test_there_is_room_for_more_than_the_engine_said_it_has():
    one = live(blocks=2)
    one.note_events(0, [stored(0, 5), stored(0, 5), stored(0, 4)])
    one.note_events(1, [stored(0, 1)])
    assert (known(one, IDS), known(one, IDS, 1)) == (19, 4)
    one.set_memory(0, 97, 4)
    one.note_events(0, [removed(20), removed(20), removed(8)])
    assert known(one, IDS) == 16
    one.note_events(0, [removed(8), removed(8)])
    assert known(one, IDS) == 4


def test_without_events_it_goes_by_what_it_sent():
    one, chunks = live(), chunks_of({"prompt": IDS}, False, 4, 4.0)
    r = one.arrive(0.0, RequestTerms(len(IDS), 1.0, 0.05), chunks)
    one.send(0.0, r, 0)
    assert known(one, IDS) == 19
    one.note_events(0, [stored(0, 1)])
    assert known(one, IDS) == 4
    one.ignore_events(0)
    assert known(one, IDS) == 19


def test_an_engine_that_is_gone_has_nothing():
    one = live((FULL, WINDOW))
    one.note_events(0, [stored(0, 4), stored(0, 4, 1, [2])])
    one.lose(0.0, 0)
    assert known(one, IDS) == 0


@pytest.mark.parametrize(("groups", "found"), [((FULL, WINDOW), 12), ((FULL, STATE), 0)])
def test_another_router_takes_over_what_engines_have_told(groups, found):
    """Unless it takes their blocks to be others."""
    before, one = live((FULL, WINDOW)), live(groups)
    before.note_events(0, [stored(0, 4), stored(0, 4, 1, [2])])
    hand_over(before, one, 0.0)
    assert known(one, IDS) == found
    one.note_events(0, [stored(4, 1)])
    assert known(one, IDS) == found


def test_it_sends_requests_where_their_blocks_are():
    one = live((FULL, WINDOW))
    one.note_events(1, [stored(0, 4), stored(0, 4, 1, [2])])
    r = one.arrive(0.0, RequestTerms(20, 1.0, 0.05), chunks_of({"prompt": IDS}, False, 4, 4.0))
    assert one.route(0.0, r) == 1


@pytest.mark.parametrize("path", FIXTURES, ids=[path.name.split(".")[0] for path in FIXTURES])
def test_it_knows_what_vllm_finds(path):
    """The stream of vLLM 0.33's own scheduler, recorded by experiments/engines/kv_event_stream.py: before each look-up
    the router knows of what vLLM then found."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    groups = [KvCacheGroup(**group) for group in document["groups"]]
    size = min((group.block_tokens for group in groups), default=16)
    one, seen = live(groups, document["blocks"], size, size), []
    for kind, what, *found in document["records"]:
        if kind == "events":
            one.note_events(0, read_batch(bytes.fromhex(what)))
        else:
            seen.append((what, known(one, document["prompts"][what]), *found))
    assert [(what, ours) for what, ours, _ in seen] == [(what, theirs) for what, _, theirs in seen]
    assert sum(found > 0 for *_, found in seen) > 15


STORED: dict[str, Any] = {
    "type": "BlockStored", "block_hashes": [b"x"], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2,
    "lora_id": None, "medium": "GPU", "lora_name": None,
}  # fmt: skip


def packed(*events: Any) -> bytes:
    return msgpack.packb([0.5, list(events)])


def test_events_are_read():
    (event,) = read_batch(packed(STORED))
    assert event == BlockStored((b"x",), None, (1, 2), 2, 0, True)
    gone = {"type": "BlockRemoved", "block_hashes": [7, b"y"], "medium": None, "group_idx": 3}
    assert read_batch(packed(gone, {"type": "AllBlocksCleared"})) == [BlockRemoved((7, b"y"), 3), AllBlocksCleared()]
    assert read_batch(packed(STORED | {"medium": "CPU"})) == []
    for own, alike, adapter in (
        ({"lora_id": 1}, False, ""),  # of an earlier vLLM, which tells no name
        ({"lora_id": 1, "lora_name": "a"}, True, "a"),
        ({"lora_name": "a", "extra_keys": [["a"]]}, True, "a"),
        ({"lora_name": "a", "extra_keys": [["a", "salt"]]}, False, "a"),
        ({"lora_name": "a", "extra_keys": [["b"]]}, False, "a"),
        ({"extra_keys": [["salt"]]}, False, ""),
        ({"extra_keys": [None]}, True, ""),
    ):
        (event,) = read_batch(packed(STORED | own))
        assert isinstance(event, BlockStored) and (event.alike, event.adapter) == (alike, adapter)


@pytest.mark.parametrize(("payload", "words"), [
    (b"\xc1", "KV events: they cannot be unpacked"),
    (msgpack.packb({"ts": 1}), "KV events: a batch is {'ts': 1}; it should be [seconds, events"),
    (packed(["BlockStored", [b"x"]]), "KV event: it is ['BlockStored', [b'x']]; it should be a map with its type"),
    (packed({"type": "Moved"}), "its type is 'Moved'; it should be BlockStored, BlockRemoved or AllBlocksCleared"),
    (packed(STORED | {"block_hashes": "x"}), "block_hashes is 'x'; it should be a list of hashes"),
    (packed(STORED | {"group_idx": -1}), "group_idx is -1; it should be a whole number of 0 or more"),
    (packed(STORED | {"parent_block_hash": "x"}), "parent_block_hash is 'x'; it should be a hash, or nothing"),
    (packed(STORED | {"block_size": 0}), "block_size is 0; it should be a whole number of 1 or more"),
    (packed(STORED | {"lora_name": 3}), "lora_name is 3; it should be a text, or nothing"),
    (packed(STORED | {"token_ids": ["a"]}), "token_ids is ['a']; it should be a list of token ids"),
    (packed(STORED | {"token_ids": [1]}), "1 hashes come with 1 token ids of blocks of 2"),
])  # fmt: skip
def test_what_cannot_be_read_is_one_line(payload, words):
    with pytest.raises(RoutingError) as error:
        read_batch(payload)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("groups", "event", "words"), [
    ((FULL, WINDOW), stored(0, 1, 2), "it is of group 2; the device's profile has 2"),
    ((), removed(4, 1), "it is of group 1; the device's profile has 1"),
    ((FULL, WINDOW), stored(0, 1, 1, size=8), "blocks of group 1 have 8 tokens; the device's profile has 4"),
    ((KvCacheGroup(8), WINDOW), stored(0, 2), "blocks of group 0 have 4 tokens; the device's profile has 8"),
    ((), stored(0, 1, size=6), "blocks of [6] tokens do not end with chunks of 4"),
])  # fmt: skip
def test_events_that_do_not_fit_the_profile_are_one_line(groups, event, words):
    one = live(groups)
    with pytest.raises(RoutingError) as error:
        one.note_events(0, [event])
    assert words in str(error.value)
    assert known(one, IDS) == 0
    size = groups[0].block_tokens if groups else 4
    one.note_events(0, [stored(0, 8 // size, size=size), *([stored(0, 2, 1, [1])] if groups else [])])
    with pytest.raises(RoutingError):
        one.note_events(0, [stored(8 // size, 1, size=size), dataclasses.replace(event, group=9)])
    assert known(one, IDS) == 8


def test_groups_that_are_not_simulated_are_refused():
    with pytest.raises(RoutingError, match="KV events are not read of windows beside states of fixed size"):
        live((FULL, WINDOW, STATE))
    with pytest.raises(RoutingError, match="not read of windows alone, as vLLM does not report which"):
        live((WINDOW,))


def test_where_an_engine_publishes():
    assert address_of("http://10.0.0.1:8000/x", 5557) == "tcp://10.0.0.1:5557"
    assert address_of("http://[::1]:8000", 5557) == "tcp://[::1]:5557"


def test_the_stream_of_an_engine_is_followed():
    """Batches in their order; a gap in their numbers is noticed; one that cannot be read ends it."""
    zmq = pytest.importorskip("zmq", reason="needs pyzmq (the extra kv-events)")
    heard: list[Any] = []

    async def both() -> None:
        context = zmq.Context()
        publisher = context.socket(zmq.PUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        following = asyncio.create_task(
            follow(f"tcp://127.0.0.1:{port}", lambda events: heard.append(len(events)), lambda: heard.append("lost"))
        )
        messages = {5: packed(STORED), 6: packed(STORED, STORED), 8: packed(), 9: b"\xc1"}
        first = 5
        while not heard:  # until it has subscribed
            publisher.send_multipart((b"", first.to_bytes(8, "big"), messages[first]))
            await asyncio.sleep(0.02)
        del heard[:]
        for number in (6, 8, 9):
            publisher.send_multipart((b"", number.to_bytes(8, "big"), messages[number]))
        try:
            async with asyncio.timeout(10):
                await following
        finally:
            publisher.close(0)
            context.term()

    with pytest.raises(RoutingError, match="cannot be unpacked"):
        asyncio.run(both())
    assert [one for one in heard if one != 1][-3:] == [2, "lost", 0]


def test_a_proxy_goes_by_events_until_one_cannot_be_read(engines: list[FakeEngine], caplog) -> None:
    zmq = pytest.importorskip("zmq", reason="needs pyzmq (the extra kv-events)")
    ids, cached = (
        list(range(40)),
        STORED | {"block_hashes": [b"x", b"y"], "token_ids": list(range(32)), "block_size": 16},
    )
    engines[0].ids = ids
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        settings = dataclasses.replace(QUICK, kv_events_port=publisher.bind_to_random_port("tcp://127.0.0.1"))
        with proxied([engines[0].url], settings, "kv-aware") as proxy:
            live_router, publishes = proxy.proxy.router, proxy.proxy.router.snapshots["publishes"]

            def publish(payload: bytes, number: int) -> bool:
                publisher.send_multipart((b"", number.to_bytes(8, "big"), payload))
                return bool(publishes[0])

            until(lambda: publish(packed(cached), 7), "the proxy has subscribed")
            until(lambda: np.count_nonzero(live_router.known.prefixes.published["name"]) == 2, "both blocks are noted")
            came, arrive = [], live_router.arrive
            live_router.arrive = lambda now_s, asked, chunks: (
                came.append((asked.prompt_tokens, chunks)) or arrive(now_s, asked, chunks)
            )
            stream(proxy.url, prompt="a text")
            assert came == [(40, chunks_of({"prompt": ids}, False, 16, 4.0))]
            until(lambda: not publish(b"\xc1", 8), "it goes by what it sends again")
            assert [record.levelname for record in caplog.records if "cannot be unpacked" in record.message] == [
                "WARNING"
            ]
            assert "the router goes by what it sends there" in caplog.text


def test_what_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(RoutingError, match=r"KV events need msgpack: .*pip install .*\[kv-events\]'"):
        read_batch(b"")
