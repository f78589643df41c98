"""`servegym replay`."""

import json
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from tests.adapters.replay.fake_server import Answer, serving
from tests.cli.test_simulate import NEEDED

pytest.importorskip("httpx")
TRACE = "arrival_s,prompt_tokens,output_tokens,ttft_slo_s,tpot_slo_s\n" + "".join(
    f"{i / 20},8,3,60,20\n" for i in range(5)
)


def answer(number, body):
    return Answer([(0.05, 1), (0.1, 2)])


def test_figures_have_the_names_of_a_simulation(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text(TRACE)
    with serving(answer) as server:
        arguments = ("replay", "--endpoint", server.url, "--trace", "mine.csv", "--json", "-", "--out", "live")
        done = servegym(*arguments)
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) >= NEEDED
    assert document["finished"] == document["requests"] == 5
    assert document["tdg_ratio"] == document["slo_attainment"] == 1
    assert document["tokens_emitted"] == 15
    assert document["ttft_s"]["p50"] >= 0.05
    assert document["iterations"] is None
    assert document["arguments"]["model"] == "fake"
    assert "5 finished" in done.stderr
    assert json.loads((tmp_path / "live/run.json").read_text()) == document
    assert len(pd.read_parquet(tmp_path / "live/requests.parquet")) == 5
    assert len(pd.read_parquet(tmp_path / "live/tokens.parquet")) == 15


@pytest.mark.slow
def test_sessions_and_clients(servegym, tmp_path):
    lines = "session,turn,think_s,prompt_tokens,output_tokens,ttft_slo_s,tpot_slo_s\n"
    lines += "".join(f"{s},{t},{0.05 if t else ''},{40 + 20 * t},3,60,20\n" for s in range(3) for t in range(3))
    (tmp_path / "talks.csv").write_text(lines)
    with serving(answer) as server:
        done = servegym(
            "replay", "--endpoint", server.url, "--trace", "talks.csv", "--clients", "2", "--out", "live", "--csv",
            "--json", "-",
        )  # fmt: skip
        bodies = server.bodies
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["requests"], document["finished"]) == (9, 9)
    assert document["arguments"]["clients"] == 2 and "by 2 clients" in done.stderr
    table = pd.read_csv(tmp_path / "live/requests.csv")
    assert table["session"].value_counts().tolist() == [3, 3, 3]
    follows = table[table["after"] >= 0]
    ended_s = table.set_index("request")["finish_s"][follows["after"]].to_numpy()
    assert (follows["arrival_s"].to_numpy() >= ended_s + 0.05).all()
    begun_s = table[table["after"] < 0]["arrival_s"].tolist()
    assert begun_s[:2] == [0, 0] and begun_s[2] >= table["finish_s"].min() + 0.3, "the third waits for a client"
    by_length = {length: [b["prompt"] for b in bodies if len(b["prompt"]) == length] for length in (40, 60)}
    blocks = [{tuple(prompt[:32]) for prompt in prompts} for prompts in by_length.values()]
    assert blocks[0] == blocks[1] and len(blocks[0]) == 3, "full blocks of 16 are those of the turn before"


def test_load_is_that_of_the_devices(servegym, tmp_path):
    with serving(answer) as server:
        done = servegym(
            "replay", "--endpoint", server.url, "--device", "a100-llama3-8b", "--load", "light", "--requests", "3",
            "--speed", "1000", "--no-slos", "--json", "run.json",
        )  # fmt: skip
    assert done.status == 0, done.stderr
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["statuses"]["cut off"] == 3
    assert "3 cut off" in done.stdout


@pytest.mark.parametrize(("arguments", "words"), [
    ((), ("--endpoint",)),
    (("--endpoint", "here"), ("http://",)),
    (("--endpoint", "http://127.0.0.1:9"), ("--rate", "azure-conv")),
    (("--endpoint", "http://127.0.0.1:9", "--rate", "1"), ("127.0.0.1:9", "cannot be reached")),
    (("--endpoint", "http://127.0.0.1:9", "--load", "high"), ("--device",)),
    (("--endpoint", "http://127.0.0.1:9", "--rate", "1", "--speed", "0"), ("speed",)),
    (("--endpoint", "http://127.0.0.1:9", "--rate", "1", "--model", "m", "--prompt", "x"), ("prompt", "ids")),
    (("--endpoint", "http://127.0.0.1:9", "--csv"), ("--out",)),
    (("--endpoint", "http://127.0.0.1:9", "--trace", "nothing"), ("nothing",)),
])  # fmt: skip
def test_wrong_values_are_told_on_one_line(servegym, arguments, words):
    done = servegym("replay", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr


@pytest.mark.slow
def test_ctrl_c_keeps_what_came(tmp_path):
    (tmp_path / "mine.csv").write_text(TRACE + "600,8,3,60,20\n")
    with serving(answer) as server:
        command = [sys.executable, "-m", "servegym", "replay", "--endpoint", server.url, "--trace", "mine.csv"]
        replay = subprocess.Popen([*command, "--out", "live"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        deadline_s = time.monotonic() + 60
        while server.answered < 5 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(1)  # for the client to read the ends
        replay.send_signal(signal.SIGINT)
        _, told = replay.communicate(timeout=60)
    assert replay.returncode == 130, told
    assert "5 of 6 requests were sent" in told
    document = json.loads((tmp_path / "live/run.json").read_text())
    assert document["interrupted"]
    assert (document["requests"], document["finished"]) == (5, 5)
    assert document["statuses"]["not sent"] == 1
