"""`servegym tune`: what it prints and writes, and errors in one line."""

import json
import warnings
from itertools import pairwise

import pytest

from servegym.cli.tune import warnings_in_a_line
from servegym.extras import install_command

SMALL = (
    "--trace", "azure-conv", "--test-trace", "azure-code", "--load", "3", "--requests", "60", "--seeds", "1",
    "--trials", "3", "--top-k", "1", "--engines", "1",
)  # fmt: skip


def test_one_study_from_the_command_line(servegym):
    asked = ("tune", "--scheduler", "slide-batching", "--tune", "gamma,eta=0.01..0.1", *SMALL, "--out", "here")
    done = servegym(*asked, "--json", "-")
    document = done.document
    study = document["studies"]["slide-batching"]
    assert study["trials"]["complete"] == 3 and study["defaults"]["settings"]["scheduler"]["gamma"] == 1.0
    assert "scheduler.eta, s" in done.stderr and "95 % intervals" not in done.stderr  # of one seed there are none
    assert "Written: tables in here" in done.stderr
    again = servegym(*asked, "--json", "-")
    assert json.loads(again.stdout)["studies"] == document["studies"]
    more = servegym(*asked, "--trials", "4", "--json", "-")
    assert json.loads(more.stdout)["studies"]["slide-batching"]["trials"]["complete"] == 4


def test_engines_that_take_time_to_start(servegym, tmp_path):
    asked = (
        "--engines", "2", "--startup", "1", "--router", "min-load", "--load", "3", "--requests", "30", "--seeds", "1",
    )  # fmt: skip
    scalers = ("--scaler", "target-utilisation:interval_s=0.5")
    done = servegym("tune", *scalers, "--tune", "most_requests=4..100", "--trials", "1", "--trials-only", *asked)
    assert done.status == 0, done.stderr
    done = servegym("evaluate", *scalers, "--scaler", "forecast:interval_s=0.5", "--trace", "azure-code", *asked)
    assert done.status == 0, done.stderr


@pytest.mark.slow
def test_trials_only_leaves_the_rest_to_another(servegym, tmp_path):
    asked = ("tune", "--scheduler", "edf", *SMALL, "--out", "here")
    done = servegym(*asked, "--trials-only")
    assert done.status == 0 and "All trials of edf are done" in done.stdout
    assert not (tmp_path / "here/edf").exists()
    assert servegym(*asked).status == 0 and (tmp_path / "here/edf/outcome.json").exists()


@pytest.mark.slow
def test_another_panel_takes_another_name(servegym):
    """In one storage a name has one panel; --name makes room for another."""
    asked = ("tune", "--scheduler", "edf", "--tune", "max_num_batched_tokens", *SMALL, "--out", "here", "--trials-only")
    assert servegym(*asked, "--trials", "1").status == 0
    other = [word.replace("3", "2") if before == "--load" else word for before, word in pairwise(("", *asked))]
    assert "take another name (tune --name)" in servegym(*other, "--trials", "1").refusal
    assert servegym(*other, "--trials", "1", "--name", "mine").status == 0
    assert "name is 'a/b'; it should be some text without /" in servegym(*other, "--name", "a/b").stderr


@pytest.mark.slow
def test_no_room_is_told_and_the_report_is_of_what_ran(servegym, tmp_path):
    """At a load where the defaults serve all in time; the shipped file's words are about other loads."""
    asked = ["tune", "--scheduler", "edf", "--tune", "max_num_batched_tokens", *SMALL, "--out", "here", "--trials", "1"]
    asked[asked.index("3")] = "0.1"
    done = servegym(*asked)
    assert done.status == 0, done.stderr
    assert "edf: There is no room: the defaults reach" in done.stdout and "Mean TDG ratio on the test" in done.stdout
    page = (tmp_path / "here/edf/report.html").read_text()
    assert "Tuned on azure-conv at load 0.1, a100-llama3-8b, 1 seed from 0 on" in page
    assert "Tested on azure-code at load 0.1" in page and "There is no room" in page
    assert "medium load to overload" not in page


@pytest.mark.slow
def test_a_file_served_whole_is_run_once_and_what_was_put_right_in_it_is_told(servegym, tmp_path):
    """With SLOs of one class there is no share of low priority, which is null in the outcome."""
    lines = [f"{i * 0.3},200,{30 * (i != 5)}" for i in (*range(20), 22, 21)]
    (tmp_path / "log.csv").write_text("\n".join(["when,input,output", *lines]))
    done = servegym(
        "tune", "--scheduler", "edf", "--trials", "1", "--engines", "1", "--trace", "log.csv", "--test-trace",
        "log.csv", "--columns", "arrival=when,prompt=input,output=output", "--drop-empty", "--sort", "--arrivals",
        "own", "--requests", "21", "--slo", "ttft_s=1,tpot_s=0.05", "--load", "0.5", "--seeds", "3", "--json", "-",
    )  # fmt: skip
    document = done.document
    said = " ".join(done.stderr.split())
    for note in document["notes"]:
        assert note in said
    for words in ("1 row with 0 prompt or output tokens", "rows sorted by time", "one run, the same for every"):
        assert words in said
    assert document["studies"]["edf"]["scores"]["tuning"]["defaults"]["slo_attainment_low_priority"] is None


def test_warnings_have_no_python_files(capsys):
    with warnings_in_a_line():
        warnings.warn("one worker is not heard of", stacklevel=1)
        warnings.warn_explicit("feature is new", UserWarning, "/x/optuna/samplers/a.py", 3)
    assert capsys.readouterr().err == "servegym: one worker is not heard of\n"


@pytest.mark.slow
def test_a_folder_of_its_own_that_more_trials_share(servegym, tmp_path):
    asked = ("tune", "--scheduler", "edf", "--tune", "max_num_batched_tokens", *SMALL, "--trials-only")
    assert servegym(*asked).status == servegym(*asked, "--trials", "2", "--top-k", "3").status == 0
    assert servegym(*asked, "--sampler", "random").status == 0
    assert len(list((tmp_path / "results").glob("tune-default-*"))) == 2


@pytest.mark.parametrize(("arguments", "problem"), [
    (("nowhere",), "unknown tuning 'nowhere'; there are: default, proserve-a100, proserve-ascend"),
    (("--study", "x"), "default has no study 'x'; it has proserve"),
    (("--study", "proserve", "--scheduler", "edf"), "--study takes a study of the file"),
    (("proserve-a100", "--tune", "gamma"), "--tune is for one study, and proserve-a100 has engine"),
    (("--tune", "gama"), "no policy has a parameter gama; scheduler slide-batching has gamma"),
    (("--tune", "gamma=2..3"), "scheduler.gamma: its default 1 is outside of the searched range"),
    (("--constraint", "tdg"), "a constraint of 'tdg': it should be NAME=NUMBER"),
    (("--sampler", "gp", "--pruner", "wilcoxon"), "gp learns from complete trials only"),
    (("--engines", "1"), "router gorouting is given, and the panel has one engine"),
    (("--storage", "mysql://x"), "no storage of the kind 'mysql'"),
    (("--load", "0"), "a load of '0'"),
    (("--device", "abacus"), "unknown profile 'abacus'"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, tmp_path, arguments, problem):
    assert problem in servegym("tune", *arguments, "--requests", "20", "--trials", "2").refusal
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(servegym, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    assert f"(optuna): {install_command('tune')}" in servegym("tune").refusal
