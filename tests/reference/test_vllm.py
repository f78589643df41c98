"""The schedulers of docs/systems/vllm.md, by hand and against logs of the real one."""

import gzip
import json
from pathlib import Path

import pytest

from .latency import Linear
from .scenes import FAR, formed, state
from .schedulers.vllm import VllmFcfs, VllmV1
from .simulator import simulate


def test_vllm_fcfs_prefills_first():
    decode = state(3, 1, 3, arrival_s=0.0)
    assert formed(VllmFcfs(), decode, state(4, arrival_s=1.0), state(5, arrival_s=2.0))[0] == [(1, 4), (2, 5)]


FIXTURES = Path(__file__).parents[1] / "vllm_v1" / "fixtures"


@pytest.mark.parametrize("name", ["fcfs-pressure-no-reserve", "priority-pressure-chunked", "watermark", "idle-gaps"])
def test_vllm_v1_takes_the_steps_of_the_real_scheduler(name):
    log = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    given, second = log["scenario"], Linear(0, 0, 0, 0, 0, 1.0)
    scheduler = VllmV1(
        given["policy"],
        given["token_budget"],
        given["max_num_seqs"],
        reserve_context=given["reserve_full_isl"],
        watermark_blocks=int(given["watermark"] * (given["usable_blocks"] + 1)),
    )
    rows = [FAR | request for request in log["requests"]]
    size = given["block_size"], given["usable_blocks"]
    mine = simulate(rows, 1, *size, 0.0, scheduler, second, second).iterations
    assert [(i.start_s, [list(pair) for pair in i.batch], i.evicted, i.free_blocks) for i in mine] == [
        (step["t"], step["scheduled"], step["preempted"], step["free_blocks"]) for step in log["steps"]
    ]
