"""`servegym train`: a policy that other commands take, and errors in one line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servegym.tuners.config import to_text
from tests.tuners.tiny import tiny


def test_what_it_writes_other_commands_take(servegym, tmp_path):
    config = tiny("ppo-engine-batching", budget={"steps": 10**9})
    (tmp_path / "mine.yaml").write_text(to_text(config))
    done = servegym("train", "mine.yaml", "--steps", "64", "--seed", "3", "--out", "runs/mine", "--json", "-")
    document = done.document
    assert document["policy"] == "runs/mine/policy.json" and Path(document["picture"]).exists()
    assert "SLO attainment" in done.stderr and "with what was learned" in done.stderr
    assert "written: runs/mine/policy.json" in done.stderr
    assert json.loads(Path("runs/mine/policy.json").read_text())["provenance"]["seed"] == 3
    done = servegym("simulate", "--scheduler", "learned:runs/mine/policy.json", "--requests", "20", "--json", "-")
    assert done.status == 0 and json.loads(done.stdout)["finished"] == 20
    done = servegym("train", "mine.yaml", "--out", "runs/mine")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr == "servegym: runs/mine has a training; --resume runs/mine continues it\n"


@pytest.mark.slow
def test_a_run_goes_into_a_folder_of_its_own(servegym, tmp_path):
    (tmp_path / "mine.yaml").write_text(to_text(tiny("maskable-ppo-cluster-routing")))
    assert servegym("train", "mine.yaml", "--seed", "2").status == 0
    assert (tmp_path / "results/train-maskable-ppo-cluster-routing-seed2/policy.json").exists()


@pytest.mark.slow
def test_the_base_can_be_a_policy_of_ones_own(servegym, servegym_process, tmp_path):
    """As docs/extending.md has it; trained, gone on with, and used."""
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text("utf-8")
    (tmp_path / "least_laxity.py").write_text(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0])
    arguments = {"scheduler": "least-laxity", "controls": ["max_num_batched_tokens"]}
    (tmp_path / "mine.yaml").write_text(to_text(tiny("ppo-engine-batching", arguments=arguments)))
    own = ("--load-policies", "least_laxity.py")
    assert "unknown scheduler 'least-laxity'" in servegym("train", "mine.yaml", "--out", "runs/mine").refusal
    done = servegym("train", "mine.yaml", "--out", "runs/mine", *own, "--json", "-")
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["base"].startswith("least-laxity")
    done = servegym_process("train", "--resume", "runs/mine", "--steps", "128", *own)
    assert done.status == 0, done.stderr
    learned = ("--scheduler", "learned:runs/mine/policy.json")
    used = servegym_process("simulate", *own, *learned, "--requests", "20", "--json", "-")
    assert used.status == 0 and json.loads(used.stdout)["finished"] == 20


@pytest.mark.parametrize(("arguments", "problem"), [
    ((), "name a training: a .yaml file, or one of "),
    (("ppo-engine-routing",), "(did you mean 'cma-engine-batching'?); there are: bc-"),
    (("none.yaml",), "there is no file none.yaml; it should be a YAML file"),
    (("bad.yaml",), "bad.yaml: environment is missing"),
    (("bc-cluster-routing", "--algorithm", "dqn"), "algorithm is 'dqn'; it should be one of ppo, maskable-ppo"),
    (("ppo-scheduling-overload", "--algorithm", "maskable-ppo"), "for Scheduling-v0 it should be ppo"),
    (("wrong.yaml",), "wrong.yaml: scenarios.trace: unknown trace 'azur'"),
    (("wrong.yaml", "--trace", "azure"), "wrong.yaml with --trace: scenarios.trace: unknown trace 'azure'"),
    (("gamma.yaml",), "gamma.yaml: hyperparameters.gamma is [0.9]; it should be a number from 0 to 1"),
    (("engines.yaml",), "engines.yaml: arguments of ClusterRouting-v0: engines=many: it should be a whole number"),
    (("ppo-scheduling-overload", "--minutes", "0"), "budget.minutes is 0.0; it should be above 0"),
    (("ppo-scheduling-overload", "--steps", "0"), "--steps"),
    (("ppo-scheduling-overload", "--out", "bad.yaml"), "--out bad.yaml: bad.yaml is a file; name a folder"),
    (("--resume", "nowhere"), "nowhere has no training to continue (no config.yaml)"),
    (("--resume", "nowhere", "--seed", "1"), "--resume continues with the configuration in its folder"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, tmp_path, arguments, problem):
    (tmp_path / "bad.yaml").write_text("algorithm: ppo\n")
    least = "environment: ClusterRouting-v0\nalgorithm: cma\nbudget: {steps: 1}\n"
    (tmp_path / "wrong.yaml").write_text(least + "scenarios: {trace: azur}\n")
    (tmp_path / "engines.yaml").write_text(least + "arguments: {engines: many}\n")
    (tmp_path / "gamma.yaml").write_text(least.replace("cma", "maskable-ppo") + "hyperparameters: {gamma: [0.9]}\n")
    before = sorted(tmp_path.iterdir())
    assert problem in servegym("train", *arguments).refusal
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["torch", "stable_baselines3", "sb3_contrib"])
def test_a_missing_extra_is_named(tmp_path, missing):
    program = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['servegym', 'train', 'ppo-scheduling-overload']\n"
        "from servegym.cli.app import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"servegym: training needs packages that are not installed ({missing}): ")
    assert re.search(r"pip install .*\[train\]'\n$", done.stderr)
    assert not list(tmp_path.iterdir())
