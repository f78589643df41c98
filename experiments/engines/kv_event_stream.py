"""Record what vLLM's own scheduler publishes of its KV blocks, and what each request finds in its cache.

    python -m experiments.engines.kv_event_stream tests/adapters/routing/fixtures

Runs where vLLM is installed, for a minute. Of each of CASES a file for tests/adapters/routing/test_kv_events.py:
batches of events as they are published, and between them prompts with the tokens that vLLM found of them.
"""

import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from experiments.engines import vllm_driving
from experiments.engines.group_parity import NARROW, SMALL_CHECKPOINTED, SMALL_STATES, UNEQUAL, cached
from experiments.engines.plugin_parity import own_scheduler
from experiments.engines.prefix_parity import sessions
from experiments.engines.vllm_driving import Limits, drive
from servegym.latency_models.profile import load_profile

CASES = {
    "full": cached((), 400),
    "window": cached(NARROW, 700),
    "unequal": cached(UNEQUAL, 1100),
    "states": cached(SMALL_STATES, 200),
    "checkpoints": cached(SMALL_CHECKPOINTED, 220),
}
SESSIONS, VOCABULARY = 9, 256  # few ids, so that the files are short


def record(limits: Limits) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """["events", a batch in hexadecimal digits] and ["found", a request, tokens], in the order they happened; and the
    token ids of the requests' prompts."""
    import msgspec
    from vllm.distributed.kv_events import KVEventBatch

    vllm_driving.MOST_ID = VOCABULARY
    scheduler, records, encoder = own_scheduler(limits), list[list[Any]](), msgspec.msgpack.Encoder()
    prompts: dict[str, list[int]] = {}
    manager = scheduler.kv_cache_manager
    manager.block_pool.enable_kv_cache_events = True
    look_up = manager.get_computed_blocks

    def watched(request: Any, *more: Any) -> Any:
        events = manager.block_pool.take_events()
        if events:
            records.append(["events", encoder.encode(KVEventBatch(ts=0.0, events=events)).hex()])
        found = look_up(request, *more)
        if request.num_preemptions == 0:
            prompts[request.request_id] = list(request.prompt_token_ids)
            records.append(["found", request.request_id, int(found[1])])
        return found

    manager.get_computed_blocks = watched
    manager.take_events = list  # the scheduler would publish them
    drive(scheduler, sessions(3, SESSIONS, 4.0), load_profile("a100-llama3-8b").device, contents=False)
    return records, prompts


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, limits in CASES.items():
        records, prompts = record(limits)
        groups = [dataclasses.asdict(group) for group in limits.groups]
        document = {"blocks": limits.blocks, "groups": groups, "prompts": prompts, "records": records}
        with gzip.GzipFile(folder / f"kv-events-{name}.json.gz", "wb", mtime=0) as file:
            file.write(json.dumps(document).encode())
        found = [one[2] for one in records if one[0] == "found"]
        print(f"{name}: {len(records)} records, {sum(map(bool, found))} of {len(found)} prompts found {sum(found):,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
