"""`servegym trace convert` and `generate`: what they write is what the simulator would have served."""

from pathlib import Path

import pytest

from servegym.traces.workloads import build_workload


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_what_is_generated_is_the_workload_of_the_same_arguments(servegym, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"mine{ending}"
    options = ("--requests", "40", "--rate", "5", "--slo", "proserve")
    done = servegym("trace", "generate", "azure-conv", target, *options)
    assert done.status == 0, done.stderr
    assert "40 requests" in done.stdout + done.stderr
    expected = build_workload("azure-conv", requests=40, rate_per_s=5, slo="proserve")
    assert build_workload(target, slo="given").digest == expected.digest


def test_a_public_format_is_converted(servegym, tmp_path: Path) -> None:
    source, target = tmp_path / "azure.csv", tmp_path / "mine.csv"
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.5,7,3\n2023-11-16 18:00:02.5,9,1\n")
    assert servegym("trace", "convert", source, target).status == 0
    lines = target.read_text().splitlines()
    assert lines[0].startswith("arrival_s,prompt_tokens,output_tokens")
    assert [line.split(",")[:3] for line in lines[1:]] == [["0.0", "7", "3"], ["2.0", "9", "1"]]


@pytest.mark.parametrize(("arguments", "says"), [
    (("generate", "no-such-family", "x.csv"), "azure-conv"),
    (("generate", "azure-conv", "x.xml"), ".parquet"),
    (("convert", "missing.csv", "x.csv"), "missing.csv"),
    (("generate", "azure-conv", "x.csv", "--rate", "5", "--arrivals", "sometimes"), "poisson"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, arguments: tuple[str, ...], says: str) -> None:
    assert says in servegym("trace", *arguments).refusal
