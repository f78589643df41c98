"""`servegym trace inspect`."""

import json

from servegym.traces.inspect import describe

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{2 * i},{100 + i},7\n" for i in range(11))


def test_json_is_what_describe_says(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text(TRACE)
    document = servegym("trace", "inspect", "mine.csv", "--json", "-").document
    assert document == json.loads(json.dumps(describe("mine.csv")))
    assert (document["requests"], document["rate_per_s"]) == (11, 0.5)


def test_table_of_a_file(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text(TRACE)
    done = servegym("trace", "inspect", "mine.csv")
    assert (done.status, done.stderr) == (0, "")
    for word in ("mine: 11 requests", "p50", "105", "mean rate, requests/s", "0.500", "sha256"):
        assert word in done.stdout


def test_table_of_a_family(servegym):
    done = servegym("trace", "inspect", "azure-conv")
    assert done.status == 0
    assert "azure-conv: 100,000 requests" in done.stdout
    assert "no arrival times" in done.stdout
