"""Files of several tools as requests that were served, and what cannot have been."""

import json

import pytest

from servegym.errors import WorkloadError
from servegym.evaluation.measured.own_requests import requests_of
from servegym.evaluation.measured.runs import read_own
from servegym.traces import Reading

HEAD = "arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n"
BENCH = {
    "backend": "vllm", "total_input_tokens": 300, "input_lens": [100, 100, 100], "output_lens": [3, 3, 0],
    "ttfts": [0.1, 0.12, 0.0], "itls": [[0.1, 0.1], [0.1, 0.2], []], "start_times": [353399.5, 353400.5, 353401.75],
    "errors": ["", "", "gone"], "generated_texts": ["a", "b", ""],
}  # fmt: skip


def record(start_ns: int, ttft: float, unit: str = "ms") -> dict:
    values = {"time_to_first_token": (ttft, unit), "request_latency": (0.9, "s")}
    values |= {"input_sequence_length": (100, "tokens"), "output_sequence_length": (12, "tokens")}
    metrics = {name: {"value": value, "unit": unit} for name, (value, unit) in values.items()}
    return {"metadata": {"request_start_ns": start_ns, "request_end_ns": start_ns}, "metrics": metrics}


def test_the_detailed_result_of_vllm_bench(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BENCH))
    run = read_own(path, 256, 2048)
    assert run.requests["arrival_s"].tolist() == [0, 1]
    assert run.requests["e2e_s"].tolist() == pytest.approx([0.3, 0.42])
    assert run.requests["itl_s"].tolist() == pytest.approx([0.1, 0.15])
    assert run.notes == ("1 requests that failed have no lengths, and are left out",)
    path.write_text(json.dumps({name: value for name, value in BENCH.items() if name != "start_times"}))
    with pytest.raises(WorkloadError, match=r"no list start_times: .* with --save-detailed"):
        read_own(path, 256, 2048)
    path.write_text(json.dumps(BENCH | {"ttfts": [0.1]}))
    with pytest.raises(WorkloadError, match="differ in length"):
        read_own(path, 256, 2048)


def test_records_of_aiperf(tmp_path):
    first = 1760000000123456789
    lost = {"metadata": {"request_start_ns": first + 7}, "metrics": None, "error": {"code": 500}}
    rows = [record(first, 80.0), record(first + 1001, 0.08, "s"), lost]
    path = tmp_path / "aiperf.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table, notes = requests_of(path, Reading())
    assert table["arrival_s"].tolist() == [0, 1001e-9]  # exactly, beyond 2^53 nanoseconds
    assert table["ttft_s"].tolist() == pytest.approx([0.08, 0.08])
    assert table["e2e_s"].tolist() == [0.9, 0.9]
    assert table["output_tokens"].tolist() == [12, 12]
    assert notes == ["1 requests that failed have no lengths, and are left out"]


@pytest.mark.parametrize(("row", "said"), [
    ("1,100,11,-1.75e9,2.0", "row 2: ttft_s is -1.75e+09; it should be finite seconds from 0 on"),
    ("1,100,11,3,2", "row 2: ttft_s is 3"),
    ("1,100,11,1,inf", "row 2: e2e_s is inf"),
    ("1,0,11,1,2", "row 2: prompt_tokens is 0"),
    ("1,100,1.5,1,2", "row 2: output_tokens is 1.5"),
    ("1,100,x,1,2", "row 2: output_tokens is 'x'"),
])  # fmt: skip
def test_rows_that_cannot_be(tmp_path, row, said):
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}0,100,11,0.1,1.0\n{row}\n")
    with pytest.raises(WorkloadError) as caught:
        read_own(path, 256, 2048)
    assert said in str(caught.value)


def test_other_columns_and_units(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("at;in;out;first;last\n1760000000500;9;2;100;300\n1760000000000;9;2;100;300\n")
    columns = "arrival=at,prompt=in,output=out,ttft=first,e2e=last"
    with pytest.raises(WorkloadError, match=r"column arrival_s is missing; .* --columns prompt="):
        requests_of(path, Reading())
    table, _ = requests_of(path, Reading(columns, "ms"))
    assert table["arrival_s"].tolist() == [0.5, 0]
    assert table["e2e_s"].tolist() == [0.3, 0.3]
    with pytest.raises(WorkloadError, match="has no column x, which --columns names for ttft_s"):
        requests_of(path, Reading(columns.replace("first", "x")))


def guidellm_request(start_s: float, ttft_ms: float | None, **more: object) -> dict:
    """As GuideLLM 0.8 writes it."""
    return {"request_start_time": start_s, "request_latency": 0.9, "prompt_tokens": 100, "output_tokens": 12,
            "time_to_first_token_ms": ttft_ms, "info": {"status": "completed"}} | more  # fmt: skip


def test_the_report_of_guidellm(tmp_path):
    later = {"successful": [guidellm_request(1760000010.5, 80.0)], "incomplete": [], "errored": []}
    lost = guidellm_request(1760000002.0, None, prompt_tokens=None, output_tokens=None, request_latency=None)
    first = {"successful": [guidellm_request(1760000001.5, 120.0), guidellm_request(1760000000.5, 60.0)],
             "incomplete": [guidellm_request(1760000003.0, 70.0)], "errored": [lost]}  # fmt: skip
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"metadata": {"version": 1}, "benchmarks": [{"requests": first}, {"requests": later}]}))
    table, notes = requests_of(path, Reading())
    assert table["arrival_s"].tolist() == [0, 1, 2.5, 10], "in the order of arrival, through all benchmarks"
    assert table["ttft_s"].tolist() == pytest.approx([0.06, 0.12, 0.07, 0.08])
    assert table["failed"].tolist() == [False, False, True, False]
    assert notes == ["1 requests that failed have no lengths, and are left out"]
    path.write_text(json.dumps({"benchmarks": [{"requests": first}, {"requests": {}}]}))
    with pytest.raises(WorkloadError, match=r"benchmark 2 has no requests; it should have requests\.successful"):
        requests_of(path, Reading())


def test_guidellm_before_its_names_changed(tmp_path):
    request = {
        "start_time": 5.0, "end_time": 6.0, "prompt_tokens": 8, "output_tokens": 3, "time_to_first_token_ms": 100,
    }  # fmt: skip
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"benchmarks": [{"requests": {"successful": [request]}}]}))
    table, _ = requests_of(path, Reading())
    assert table[["arrival_s", "ttft_s", "e2e_s"]].iloc[0].tolist() == [0, 0.1, 1]


@pytest.mark.parametrize("newer", [False, True])
def test_lifecycle_metrics_of_inference_perf(tmp_path, newer):
    def request(start_s: float, times: list[float], error: object = None) -> dict:
        info = {"input_tokens": 100, "output_tokens": 3, "output_token_times": times}
        if newer:
            response = {"output_tokens": 3, "output_token_times": times} if times else None
            prompt = {"text": {"input_tokens": 100}}
            info = {"request_metrics": prompt, "input_tokens": 100, "response_metrics": response}
        return {"start_time": start_s, "end_time": start_s + 0.5, "request": "{}", "info": info, "error": error}

    rows = [
        request(100.5, [100.6, 100.7, 101.0]),
        request(100.0, [100.2, 100.4, 100.5]),
        request(101.0, [], {"type": 5}),
    ]
    path = tmp_path / "per_request_lifecycle_metrics.json"
    path.write_text(json.dumps(rows))
    table, _ = requests_of(path, Reading())
    served = table[~table["failed"]]
    assert len(served) == 2
    assert served["arrival_s"].tolist() == [0.5, 0]
    assert served["ttft_s"].tolist() == pytest.approx([0.1, 0.2])
    assert served["e2e_s"].tolist() == [0.5, 0.5]
    path.write_text(json.dumps([request(100.0, [])]))
    with pytest.raises(WorkloadError, match=r"has no times of tokens .*: run inference-perf with streaming on"):
        requests_of(path, Reading())


def test_the_log_of_a_proxy_with_requests_that_failed(tmp_path):
    row = {"arrival_s": 0.0, "prompt_tokens": 9, "output_tokens": 3, "ttft_s": 0.1, "e2e_s": 0.4, "outcome": "finished",
           "ttlt_slo_s": None}  # fmt: skip
    lost = row | {"arrival_s": 2.0, "output_tokens": 0, "ttft_s": None, "outcome": "gone"}
    broken = row | {"arrival_s": 1.0, "outcome": "error"}
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (row, lost, broken)))
    table, notes = requests_of(path, Reading())
    assert table["failed"].tolist() == [False, True]
    assert table["arrival_s"].tolist() == [0, 1]
    assert notes == ["1 requests that failed have no lengths, and are left out"]
