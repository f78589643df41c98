"""Recordings: traces, and the results of benchmarks as requests that were measured."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from servegym.adapters.routing.request_log import Measured, RequestLog
from servegym.adapters.routing.rows import RequestTerms
from servegym.errors import WorkloadError
from servegym.evaluation.recommend.recording import Served, read_recording
from servegym.traces.reading import Reading

LENGTHS = {"arrival_s": [0.0, 1.0, 2.5], "prompt_tokens": [10, 20, 30], "output_tokens": [3, 4, 5]}
TIMES = {"ttft_s": [0.1, 0.2, 0.3], "e2e_s": [1.0, 2.0, 3.0]}


def file_of(tmp_path, columns, name="own.csv"):
    pd.DataFrame(columns).to_csv(tmp_path / name, index=False)
    return str(tmp_path / name)


def test_a_trace_has_no_times(tmp_path):
    found = read_recording(file_of(tmp_path, LENGTHS))
    assert found.run is None and found.trace.prompt_tokens.tolist() == [10, 20, 30]


def test_a_family_draws_as_many_as_are_asked_for():
    assert len(read_recording("azure-conv", requests=50).trace) == 50


def test_a_table_with_times_was_measured(tmp_path):
    found = read_recording(file_of(tmp_path, LENGTHS | TIMES), Served(2, 64, 1024, "min-load"), requests=2)
    assert (found.run.engines, found.run.max_num_seqs, found.run.router) == (2, 64, "min-load")
    assert found.run.requests["ttft_s"].tolist() == [0.1, 0.2, 0.3]
    assert found.trace.arrival_s.tolist() == [0.0, 1.0]


def test_the_result_of_a_benchmark(tmp_path):
    result = {
        "start_times": [5.0, 6.0], "input_lens": [10, 20], "output_lens": [3, 2], "ttfts": [0.1, 0.2],
        "itls": [[0.1, 0.1], [0.1]], "errors": ["", ""],
    }  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(result))
    found = read_recording(str(tmp_path / "bench.json"))
    assert found.trace.arrival_s.tolist() == [0.0, 1.0] and found.trace.output_tokens.tolist() == [3, 2]
    assert found.run.requests["e2e_s"].tolist() == pytest.approx([0.3, 0.3])


def test_columns_say_which_times_are_which(tmp_path):
    names = {"arrival_s": "at", "prompt_tokens": "p", "output_tokens": "o", "ttft_s": "first", "e2e_s": "last"}
    file = file_of(tmp_path, {names[name]: values for name, values in (LENGTHS | TIMES).items()})
    found = read_recording(file, reading=Reading("arrival=at,prompt=p,output=o,ttft=first,e2e=last"))
    assert found.run is not None and found.trace.prompt_tokens.tolist() == [10, 20, 30]


def test_prompts_that_repeat_and_prefix_blocks_stay_known(tmp_path):
    repeated = read_recording(file_of(tmp_path, LENGTHS | TIMES | {"prompt_tokens": [40] * 3, "prompt_id": [1, 1, 2]}))
    first, second, third = np.split(repeated.trace.prefix_blocks.ids, 3)
    assert (first == second).all() and not (first == third).any()
    rows = [
        {name: values[row] for name, values in (LENGTHS | TIMES).items()}
        | {"prefix_blocks": [1, 2 + row], "prompt_tokens": 40, "prefix_block_tokens": 16} for row in range(3)
    ]  # fmt: skip
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_recording(str(tmp_path / "own.jsonl"))
    assert found.run.prefixes is not None and found.trace.prefix_blocks.block_tokens == 16


def test_few_failed_requests_are_left_out_and_many_stay(tmp_path):
    many = {name: np.tile(values, 50)[:100] for name, values in (LENGTHS | TIMES).items()} | {"failed": [False] * 100}
    many["failed"][3] = True
    few = read_recording(file_of(tmp_path, many))
    assert len(few.run.requests) == len(few.trace) == 99 and "1 requests that failed are left out" in few.notes
    assert read_recording(file_of(tmp_path, many | {"failed": [True] * 40 + [False] * 60})).run.overloaded


def test_no_request_within_the_limits(tmp_path):
    with pytest.raises(WorkloadError, match="no requests within the token limits"):
        read_recording(file_of(tmp_path, LENGTHS | TIMES), max_prompt_tokens=5)


@pytest.mark.parametrize("ttlt_slo_s", [math.inf, 30.0])
def test_the_log_that_a_proxy_writes(tmp_path, ttlt_slo_s):
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    for k, adapter in enumerate(("", "", "legal")):
        measured = Measured(float(k), RequestTerms(40 + k, 1.0, 0.05, ttlt_slo_s if k else math.inf))
        measured.token(k + 0.1, 1)
        measured.token(k + 0.2, 2)
        log.write(float(k), measured.line(k + 0.2, outcome="finished", engine="0", adapter=adapter))
    log.close()
    found = read_recording(str(path))
    workload = found.run.workload()
    assert workload.table["prompt_tokens"].tolist() == [40, 41, 42]
    assert workload.table["ttlt_slo_s"].tolist() == [math.inf, ttlt_slo_s, ttlt_slo_s]
    assert found.trace.given["ttlt_slo_s"].tolist() == workload.table["ttlt_slo_s"].tolist()
    assert found.notes == ("the adapters of 1 requests count as the model itself",)
