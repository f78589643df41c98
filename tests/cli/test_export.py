"""`servegym export`: what it writes and prints, and what it refuses."""

import json
import subprocess
import sys

import pytest

from servegym.baselines.artifact import load_artifact
from servegym.baselines.registry import router, scheduler

NAMED = ("--scheduler", "slide-batching:gamma=2", "--router", "gorouting", "--device", "a100-llama3-8b",
         "--slo", "proserve", "--trace", "azure-conv")  # fmt: skip


def test_named_policies_become_an_artifact(servegym, tmp_path):
    done = servegym("export", *NAMED, "--out", "named.json", "--json", "-")
    assert done.status == 0, done.stderr
    artifact = load_artifact(tmp_path / "named.json")
    assert artifact.policies == {"scheduler": scheduler("slide-batching:gamma=2"), "router": router("gorouting")}
    document = json.loads(done.stdout)
    assert document["files"] == ["named.json"] and document["workload"] == artifact.workload
    assert document["estimator"]["profile"] == "a100-llama3-8b"
    assert "TTFT 1 s, TPOT 0.05 s; weights 0: 2, 1: 1" in done.stderr
    done = servegym("export", "named.json", "--target", "xllm", "--out", "again.json")
    said = " ".join(done.stdout.split())
    assert all(f"no flag for scheduler.{name}" in said for name in ("eta", "hopeless", "deadlines", "steps")), said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.flags.json", "again.json", "named.json"]


def test_a_trace_of_other_columns(servegym, tmp_path):
    (tmp_path / "log.csv").write_text("when,input,output\n2,100,10\n1,300,10\n3,50,0\n")
    named = ("export", "--scheduler", "edf", "--slo", "proserve", "--trace", "log.csv", "--out", "it.json")
    assert "name these columns" in servegym(*named).stderr
    done = servegym(*named, "--columns", "arrival=when,prompt=input,output=output", "--sort", "--drop-empty")
    assert done.status == 0, done.stderr
    assert load_artifact("it.json").workload["first_token_weight"] == 20
    assert "Trace: 1 row with 0 prompt or output tokens dropped\nTrace: rows sorted by time" in done.stdout


@pytest.mark.parametrize("target, beside", [("vllm", "it.vllm.sh"), ("ray", "it.ray.yaml"), ("xllm", "it.flags.json")])
def test_targets(servegym, tmp_path, target, beside):
    done = servegym("export", *NAMED, "--target", target, "--out", "it.json")
    assert done.status == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"it.json", beside}
    assert f"it.json, {beside}" in " ".join(done.stdout.split())


@pytest.mark.parametrize("arguments, problem", [
    ((), "name a source (a folder of servegym tune or train, or an artifact), or policies"),
    (("x.json", "--scheduler", "edf"), "not both"),
    (("nowhere",), "unknown learned policy 'nowhere'"), (("edf",), "it should be --scheduler edf"),
    (("results/nowhere",), "results/nowhere: there is no such folder or file; it should be a folder of"),
    (("x.json",), "x.json: No such file or directory"),
    (("--scheduler", "eddf"), "unknown scheduler 'eddf'"),
    (("--scheduler", "edf", "--device", "b200"), "unknown profile 'b200'"),
    (("--scheduler", "edf", "--slo", "mine", "--trace", "azure-conv"), "mine"),
    (("--scheduler", "edf", "--slo", "proserve"), "say --trace NAME too"),
    (("--scheduler", "edf", "--sort"), "--sort: only for a file that --trace names"),
    (("--scheduler", "edf", "--target", "tgi"), "unknown target 'tgi'"),
    (("--router", "gorouting", "--target", "vllm"), "vLLM takes a scheduler"),
    (("--scheduler", "edf", "--target", "xllm"), "xLLM does not have this scheduler"),
    (("--scheduler", "slide-batching", "--target", "xllm", "--xllm-version", "0.9"), "xLLM 0.9: its flags"),
    (("--router", "gorouting:mu=0.9"), "mu should be below lambda"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, tmp_path, arguments, problem):
    assert problem in servegym("export", *arguments, "--out", "it.json").refusal
    assert list(tmp_path.iterdir()) == []


def test_what_a_target_needs_is_not_loaded(tmp_path):
    """No engine and no optimiser is imported to write a file."""
    words = ["servegym", "export", *NAMED, "--target", "vllm", "--out", "it.json"]
    code = f"""
import sys
from servegym.cli.app import run
sys.argv = {words!r}
try:
    run()
finally:
    print(sorted({{name.split(".")[0] for name in sys.modules}} & {{"vllm", "ray", "optuna", "torch", "matplotlib"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]" and (tmp_path / "it.json").is_file()
