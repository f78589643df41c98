"""Wrong input: exit status 2 and one line on standard error that says what would be right."""

import pytest

ONE_RUN = ("--requests", "20", "--rate", "5")

WRONG = {
    "unknown command": (["simulat"], "simulate"),
    "unknown option": (["simulate", "--schduler", "edf"], "--scheduler"),
    "unexpected argument": (["simulate", "edf"], "edf"),
    "missing argument": (["trace", "inspect"], "TRACE"),
    "unknown scheduler": (["simulate", "--scheduler", "nope"], "sarathi-fcfs"),
    "unknown scheduler to compare": (["compare", "--scheduler", "nope"], "sarathi-fcfs"),
    "unknown parameter": (["simulate", "--scheduler", "slide-batching:nope=1"], "gamma"),
    "parameter out of range": (["simulate", "--scheduler", "slide-batching:gamma=-1"], "gamma=-1"),
    "parameter that is no number": (["simulate", "--scheduler", "slide-batching:gamma=x"], "number"),
    "number with an underscore": (["simulate", "--noise", "1_0"], "--noise 1_0: it should be 10, without underscores"),
    "parameter with one": (["simulate", "--scheduler", "slide-batching:gamma=1_0,eta=1"], "it should be 10, without"),
    "range with one": (["simulate", "--load=1..1_0"], "it should be 10, without"),
    "parameter without a value": (["simulate", "--scheduler", "slide-batching:gamma"], "key=value"),
    "unknown device": (["simulate", "--device", "nope"], "a100-llama3-8b"),
    "missing device file": (["compare", "--device", "nope.json"], "nope.json"),
    "unknown trace": (["simulate", "--trace", "azure-con"], "azure-conv"),
    "unknown trace to compare": (["compare", "--trace", "azure-con"], "azure-conv"),
    "unknown trace to inspect": (["trace", "inspect", "azure-con"], "azure-conv"),
    "missing trace file": (["simulate", "--trace", "nope.csv"], "nope.csv"),
    "missing trace file to compare": (["compare", "--trace", "nope.csv"], "nope.csv"),
    "unknown recipe": (["simulate", "--slo", "nope", *ONE_RUN], "proserve"),
    "classes shared out wrongly": (["simulate", "--slo", "qoserve:shares=70-30", *ONE_RUN], "3 numbers"),
    "classes shared out wrongly, to compare": (["compare", "--slo", "qoserve:shares=a-b-c"], "70-15-15"),
    "SLO below 0": (["simulate", "--slo", "qoserve:ttlt_s=600--1", *ONE_RUN], "numbers with -"),
    "unknown gain": (["simulate", "--gain", "nope", *ONE_RUN], "ta-slo"),
    "unknown gain to compare": (["compare", "--gain", "nope"], "ta-slo"),
    "gain with a wrong key": (["compare", "--gain", "tdg:weight=1"], "first_weight"),
    "gain worth nothing": (
        ["simulate", "--gain", "tdg:first_weight=0,decode_weight=0", *ONE_RUN],
        "one of them should be above 0",
    ),
    "unknown arrivals": (["simulate", "--arrivals", "posson", *ONE_RUN], "poisson"),
    "unknown arrivals to compare": (["compare", "--arrivals", "posson"], "poisson"),
    "arrivals without what they need": (["simulate", "--arrivals", "gamma", *ONE_RUN], "cv"),
    "arrivals at once at a rate": (["simulate", "--arrivals", "at-once", *ONE_RUN], "no rate"),
    "arrivals with a pace to compare": (["compare", "--arrivals", "waves:n=5,gap_s=0.1"], "pace of their own"),
    "own times of a family": (["simulate", "--arrivals", "own", *ONE_RUN], "no times of its own"),
    "no client": (["simulate", "--clients", "0"], "a whole number of 1 or more"),
    "no concurrency": (["compare", "--max-concurrency", "0"], "a whole number of 1 or more"),
    "clients and a rate": (["simulate", "--clients", "4", *ONE_RUN], "clients and rate_per_s are given"),
    "clients of a goodput": (["goodput", "--clients", "4"], "clients have none; compare serves closed loops"),
    "no clients to compare": (["compare", "--clients", "0"], "a whole number of 1 or more"),
    "no clients of a live endpoint": (["replay", "--endpoint", "http://127.0.0.1:1", "--clients", "0"], "1 or more"),
    "clients of an endpoint that is not there": (
        ["replay", "--endpoint", "http://127.0.0.1:1", "--clients", "4"],
        "http://127.0.0.1:1 cannot be reached: Connection refused",
    ),
    "rate and load": (["simulate", "--rate", "5", "--load", "1"], "--rate and --load"),
    "rate and load to compare": (["compare", "--rate", "5", "--load", "1"], "--rate and --load"),
    "negative rate": (["simulate", "--rate", "-5"], "above 0"),
    "rate that is none": (["simulate", "--rate", "nan"], "above 0"),
    "negative rate to compare": (["compare", "--rate", "-5"], "above 0"),
    "negative load": (["simulate", "--load", "-1"], "above 0"),
    "unknown load": (["compare", "--load", "heavy"], "overload (1.4)"),
    "load twice": (["compare", "--load", "high", "--load", "1"], "twice"),
    "scheduler twice": (["compare", "--scheduler", "edf", "--scheduler", "edf"], "twice"),
    "second device where one is taken": (
        ["compare", "--device", "a100-llama3-8b", "--device", "h100-llama3-8b"],
        "--device",
    ),
    "second scheduler where one is taken": (["simulate", "--scheduler", "edf", "--scheduler", "sjf"], "takes one"),
    "same scheduler in other words": (
        ["compare", "--scheduler", "slide-batching:gamma=2", "--scheduler", "slide-batching:gamma=2.0"],
        "the same",
    ),
    "negative requests": (["simulate", "--requests", "-5"], "--requests"),
    "requests that are no number": (["compare", "--requests", "many"], "--requests"),
    "no engines": (["simulate", "--engines", "0"], "--engines"),
    "negative seed": (["simulate", "--seed", "-1"], "--seed"),
    "no seeds": (["compare", "--seeds", "0"], "--seeds"),
    "no jobs": (["compare", "--jobs", "0"], "--jobs"),
    "baseline that is not compared": (["compare", "--scheduler", "sjf", "--baseline", "edf"], "sjf"),
    "out is a file": (["simulate", *ONE_RUN, "--out", "a-file"], "a-file"),
    "out is in a file": (["compare", "--out", "a-file/results"], "a-file"),
    "tables without a folder": (["simulate", *ONE_RUN, "--csv"], "--out"),
    "timeline without a folder": (["simulate", *ONE_RUN, "--timeline"], "--out"),
    "json in no folder": (["simulate", *ONE_RUN, "--json", "nowhere/x.json"], "nowhere"),
    "json is a folder": (["compare", "--json", "."], "folder"),
    "missing policy file": (["simulate", "--load-policies", "nope.py"], "nope.py"),
    "policy file that is not Python": (["simulate", "--load-policies", "a-file"], ".py"),
    "policy file that raises": (["compare", "--load-policies", "raises.py"], "raises.py, line 2: ZeroDivisionError"),
    "policy file that exits": (["compare", "--load-policies", "exits.py"], "exits.py, line 1: SystemExit"),
    "policy file with a slip": (["simulate", "--load-policies", "slip.py"], "slip.py, line 1: SyntaxError"),
}


@pytest.fixture
def folder_of_a_user(tmp_path):
    """Files that the arguments above name, right where they are called."""
    (tmp_path / "a-file").write_text("not a trace")
    (tmp_path / "raises.py").write_text("x = 1\nx / 0\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "slip.py").write_text("x = (\n")
    return tmp_path


@pytest.mark.parametrize("arguments, right", WRONG.values(), ids=WRONG)
def test_wrong_input_ends_with_one_line(servegym, folder_of_a_user, arguments, right):
    before = set(folder_of_a_user.iterdir())
    done = servegym(*arguments)
    assert done.status == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("servegym: ")
    assert right in done.stderr
    assert {path for path in folder_of_a_user.iterdir() if path.name != "__pycache__"} == before


def test_a_process_ends_so_too(servegym_process):
    done = servegym_process("compare", "--scheduler", "nope", "--out", "results")
    assert done.status == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_damaged_trace_is_named_with_the_row(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,100,-5\n")
    refusal = servegym("simulate", "--trace", "mine.csv").refusal
    assert "mine.csv" in refusal and "row 2" in refusal


def test_a_request_no_engine_can_hold(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,2000000,5\n")
    assert "do not fit" in servegym("compare", "--trace", "mine.csv", "--rate", "1").refusal
