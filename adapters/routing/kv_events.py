"""Reads KV events as vLLM publishes them (vllm/distributed/kv_events.py): blocks that an engine has stored and removed,
by KV cache group."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from servegym.errors import RoutingError
from servegym.extras import install_command

Hash = bytes | int
BATCH = "it should be [seconds, events, perhaps a data-parallel rank], in MessagePack"
MOST_TOKENS = 2**31 - 1  # of a block


@dataclasses.dataclass(frozen=True)
class BlockStored:
    """Blocks of one request that a group has stored, in order.

    token_ids: of all blocks after the parent, also of those that the group did not store (of a window, a state).
    parent: hash of the block before; None: there is none. alike: whether requests with the same token ids, and the same
    adapter, have the same blocks; with images and salts they differ. adapter: name of the LoRA adapter; "": none.
    """

    hashes: tuple[Hash, ...]
    parent: Hash | None
    token_ids: tuple[int, ...]
    block_tokens: int
    group: int
    alike: bool
    adapter: str = ""


@dataclasses.dataclass(frozen=True)
class BlockRemoved:
    """Blocks that a group has removed."""

    hashes: tuple[Hash, ...]
    group: int


@dataclasses.dataclass(frozen=True)
class AllBlocksCleared:
    """The engine has removed all blocks that requests could find."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def module(name: str) -> Any:
    """Import msgpack or zmq.asyncio. Raises RoutingError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise RoutingError(f"KV events need {name.partition('.')[0]}: {install_command('kv-events')}") from None


def read_batch(payload: bytes) -> list[Event]:
    """Read the events of a batch, without those of blocks in host memory or a store. Raises RoutingError."""
    msgpack = module("msgpack")
    try:
        batch = msgpack.unpackb(payload, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:  # the library's message may be empty
        raise RoutingError(f"KV events: they cannot be unpacked ({error or type(error).__name__}); {BATCH}") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise RoutingError(f"KV events: a batch is {_shown(batch)}; {BATCH}")
    return [event for event in map(_event, batch[1]) if event is not None]


def _event(fields: Any) -> Event | None:
    if not isinstance(fields, dict):
        raise RoutingError(f"KV event: it is {_shown(fields)}; it should be a map with its type")
    kind = fields.get("type")
    if kind == "AllBlocksCleared":
        return AllBlocksCleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        known = "BlockStored, BlockRemoved or AllBlocksCleared"
        raise RoutingError(f"KV event: its type is {_shown(kind)}; it should be {known}")
    hashes, group = fields.get("block_hashes"), fields.get("group_idx")
    if not isinstance(hashes, list) or not all(isinstance(one, bytes | int) for one in hashes):
        raise RoutingError(f"KV event: block_hashes is {_shown(hashes)}; it should be a list of hashes")
    if group is not None and not _is_whole(group, 0):
        raise RoutingError(f"KV event: group_idx is {_shown(group)}; it should be a whole number of 0 or more")
    medium = fields.get("medium")
    if isinstance(medium, str) and medium.upper() != "GPU":
        return None
    if kind == "BlockRemoved":
        return BlockRemoved(tuple(hashes), group or 0)
    parent, ids, size = fields.get("parent_block_hash"), fields.get("token_ids"), fields.get("block_size")
    if not isinstance(parent, bytes | int | None):
        raise RoutingError(f"KV event: parent_block_hash is {_shown(parent)}; it should be a hash, or nothing")
    if not _is_whole(size, 1):
        raise RoutingError(f"KV event: block_size is {_shown(size)}; it should be a whole number of 1 or more")
    if not isinstance(ids, list) or not all(_is_whole(one, 0) for one in ids):
        raise RoutingError(f"KV event: token_ids is {_shown(ids)}; it should be a list of token ids")
    if len(ids) % size or len(hashes) > len(ids) // size:
        blocks = f"{len(hashes)} hashes come with {len(ids)} token ids"
        raise RoutingError(f"KV event: {blocks} of blocks of {size}; each block should have as many as that")
    adapter = fields.get("lora_name") or ""
    if not isinstance(adapter, str):
        raise RoutingError(f"KV event: lora_name is {_shown(adapter)}; it should be a text, or nothing")
    own = [adapter] if adapter else []  # keys of a block that has no others
    alike = all(not keys or keys == own for keys in fields.get("extra_keys") or ())
    alike = alike and (bool(adapter) or fields.get("lora_id") is None)
    return BlockStored(tuple(hashes), parent, tuple(ids), size, group or 0, alike, adapter)


def _is_whole(value: Any, least: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= MOST_TOKENS


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def address_of(url: str, port: int) -> str:
    """Return the address at which the engine at a URL publishes: this port of its host."""
    host = urlsplit(url).hostname or ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


async def follow(address: str, received: Callable[[list[Event]], None], lost: Callable[[], None]) -> None:
    """Follow the events published at an address, until cancelled. received: called with each batch; lost: when batches
    are missing, or the engine has restarted. Raises RoutingError for a batch that cannot be read."""
    zmq = module("zmq")
    context = module("zmq.asyncio").Context()
    socket = context.socket(zmq.SUB)
    try:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        expected = None
        while True:
            parts = await socket.recv_multipart()
            if len(parts) != 3 or len(parts[1]) != 8:
                right = "it should have a topic, a number of 8 bytes, and events"
                raise RoutingError(f"KV events: a message has {len(parts)} parts; {right}")
            number = int.from_bytes(parts[1], "big")
            if expected is not None and number != expected:
                lost()
            expected = number + 1
            received(read_batch(parts[2]))
            await asyncio.sleep(0)  # let other tasks run between batches
    finally:
        socket.close()
        context.term()
