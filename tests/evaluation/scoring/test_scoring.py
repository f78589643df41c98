"""A score of a file: what it comes to, in stages, and that nothing a policy does gets further than a line.

The scoring process is shared by the tests of this file: it takes seconds to start.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import servegym
from servegym.errors import PolicyError, ServegymError
from servegym.evaluation.scoring import client, sandbox
from servegym.evaluation.scoring.server import OWN_CACHES
from servegym.simulator.compilation.cache import cache_root

pytestmark = pytest.mark.slow

PANEL = Path(__file__).with_name("small.yaml")
FILE = """
import numpy as np

from servegym.policy import Policy, next_deadline_s, register, scheduler

{module}


@scheduler
def mine(context, ranks, limits):
    limits.max_num_batched_tokens = 512
    for position in range(context.queue.shape[0]):
        request = context.requests[context.queue[position]]
        ranks[position].tier, ranks[position].key = 0, {key}
    {statement}


register(Policy("mine", "scheduler", "A test.", "a test", mine))
"""
BEFORE = "if context.requests.shape[0] == 60:"  # in a run of the panel, not in the check's scenarios


def written(folder: Path, key: str = "next_deadline_s(request)", statement: str = "pass", module: str = "") -> Path:
    file = folder / "mine.py"
    file.write_text(FILE.format(key=key, statement=statement, module=module), "utf-8")
    return file


def scored(file: Path | str, **options: object) -> servegym.Score:
    return servegym.score(file, PANEL, **{"least": 0.0, **options})


def test_a_score_is_the_mean_share_and_says_what_is_under_it(tmp_path: Path) -> None:
    found = scored(written(tmp_path))
    assert (found.policy, found.panel, found.stage) == ("mine", "small", "full")
    assert found.relative_to == "the better of slide-batching and expected-gain"
    assert len(found.runs) == 4 and {run["replicate"] for run in found.runs} == {0, 1}
    assert found.combined_score == pytest.approx(sum(run["share"] for run in found.runs) / 4)
    assert found.low <= found.combined_score <= found.high
    assert found.metrics["share, load 1.4"] < found.metrics["share, load 0.7"]
    assert {"slo_attainment", "fairness_by_length", "round_us", "tdg_ratio of expected-gain"} <= found.metrics.keys()
    assert "azure-conv on a100-llama3-8b at load 1.4" in found.artifacts["feedback"]
    assert found.artifacts["scenarios"].count("\n") == 3
    again = scored(tmp_path / "mine.py")
    assert [run["share"] for run in again.runs] == [run["share"] for run in found.runs]


def test_a_run_is_that_of_the_panels_scenario() -> None:
    """What a policy of a file gets is what the same policy gets by name in an evaluation."""
    from servegym.evaluation.panels.evaluation import Evaluation
    from servegym.evaluation.panels.panel import load_panel
    from servegym.simulator.runs.simulation import Simulation

    found = scored("qoserve")
    part = Evaluation(load_panel(PANEL), ("qoserve", "edf")).parts[0]
    for run in found.runs:
        scenario = part.scenario(run["load"], run["seed"], part.candidates["qoserve"])
        assert Simulation(scenario).run().summary["tdg_ratio"] == run["tdg_ratio"]
    best = scored("expected-gain")
    assert best.combined_score <= 1.0


def test_a_poor_policy_is_not_run_further_than_the_quick_scenarios(tmp_path: Path) -> None:
    found = scored(written(tmp_path, key="-next_deadline_s(request)"), least=1.0)
    assert found.stage == "quick" and len(found.runs) == 1 and found.runs[0]["load"] == 1.4
    assert found.combined_score == pytest.approx(found.runs[0]["share"] / 4)  # of four scenarios one was run
    assert found.stopped.startswith("Stopped early after 1 of 4 scenarios, those of load 1.4: a share of 0.")
    assert found.artifacts["feedback"].startswith(found.stopped) and found.to_json()["combined_score"] is None
    assert "Missed there: T" in found.artifacts["feedback"]


WAYS = {
    "raises": ({"statement": f"{BEFORE}\n        assert context.queue.shape[0] > 99, 'so few'"}, {},
               "mine.py before its first run ended: .*AssertionError: so few"),
    "hangs": ({"statement": f"{BEFORE}\n"
              "        while context.now_s > -1:\n            limits.max_num_batched_tokens += 1"},
              {"limit_s": 2.0}, "mine.py before its first run ended: no end in 2 s"),
    "writes what it may only read": ({"statement": "context.requests[context.queue[0]].num_output_tokens += 1"}, {},
                                     "did not pass its check .*wrote into requests"),
    "takes memory": ({"module": "LARGE = np.ones((2**29, 4))"}, {"memory_gib": 1.5}, "MemoryError|allocate"),
    "registers nothing": ({"module": "register = print"}, {}, "registers no policy"),
    "has a misspelt field": ({"key": "request.arrivals"}, {}, "mine.py, line [0-9]+"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_what_a_policy_does_is_named_and_does_no_harm(way: str, tmp_path: Path) -> None:
    text, options, words = WAYS[way]
    with pytest.raises(PolicyError, match=words) as refused:
        scored(written(tmp_path, **text), **options)
    assert "\n" not in str(refused.value)


SHIPPED = """
import dataclasses

from servegym.baselines import registry
from servegym.policy import register

register(dataclasses.replace(registry.scheduler("vllm-v1"), name="mine"))
"""


def test_a_file_comes_to_what_its_policy_comes_to_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SHIPPED, "utf-8")
    by_name, by_file = scored("vllm-v1"), scored(file)
    for one, other in zip(by_name.runs, by_file.runs, strict=True):
        assert {**one, "policy": "", "round_us": 0} == {**other, "policy": "", "round_us": 0}


FORGERIES = {
    "figures": """
from servegym.simulator.runs.figures import FIGURES

FIGURES["tdg_ratio"] = lambda result: 9.0
""",
    "results": """
import functools

from servegym.simulator.runs.results import Result


class Forged:
    summary = property(lambda result: {"tdg_ratio": 9.0})


functools.update_wrapper(Result, Forged, assigned=["summary"], updated=[])
""",
}


@pytest.mark.parametrize("way", FORGERIES)
def test_a_policy_cannot_change_what_its_decisions_come_to(way: str, tmp_path: Path) -> None:
    honest = scored(written(tmp_path))
    forged = scored(written(tmp_path, module=FORGERIES[way]))
    assert [run["tdg_ratio"] for run in forged.runs] == [run["tdg_ratio"] for run in honest.runs]
    assert forged.combined_score == honest.combined_score


def test_what_is_compiled_for_a_policy_stays_in_a_cache_of_its_own(tmp_path: Path) -> None:
    scored("edf")  # the server and the baselines are ready
    file = written(tmp_path, statement=f"limits.max_num_batched_tokens += {os.getpid()}")
    scored(file)
    own = cache_root() / OWN_CACHES / hashlib.sha256(file.read_bytes()).hexdigest()[:20]
    compiled = {path.name for path in own.rglob("*.kernel")}
    assert compiled and not compiled & {path.name for path in cache_root().glob("*/*.kernel")}
    shutil.rmtree(own)


@pytest.mark.skipif(not sandbox.is_there(), reason="this system lets its user have no namespaces")
def test_in_the_sandbox_a_policy_writes_nothing(tmp_path: Path) -> None:
    writes = written(tmp_path, module=f"np.save({str(tmp_path / 'out.npy')!r}, np.ones(3))")
    with pytest.raises(PolicyError, match=r"mine.py, line 6: OSError: .*Read-only file system"):
        scored(writes)
    assert not (tmp_path / "out.npy").exists()


def test_a_score_that_nothing_waits_for_ends_without_a_word(tmp_path: Path) -> None:
    """As under a `timeout` outside, which ends the process that asked."""
    command = [sys.executable, "-P", "-m", "servegym.evaluation.scoring.server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        job = {"do": "score", "path": None, "name": "edf", "kind": "scheduler", "panel": str(PANEL), "least": 0.0,
               "baselines": [], "memory_gib": 4.0, "limit_s": 60.0, "errors": str(tmp_path / "errors")}  # fmt: skip
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_what_cannot_be_scored_is_said(tmp_path: Path) -> None:
    for asked, options, words in (
        ("nowhere.py", {}, "there is no such file"),
        ("slide-batchin", {}, "unknown scheduler"),
        ("edf", {"panel": "nowhere"}, "nowhere"),
        ("edf", {"panel": 3}, "a panel of type int; it should be a name or a file"),
        (3, {}, "a policy of type int; it should be a file, or the name of a policy"),
        ("edf", {"baselines": "sjf"}, "baselines is 'sjf'; it should be several names, two or more"),
        ("edf", {"baselines": ["edf"]}, "the only baseline; name two or more"),
    ):
        with pytest.raises(ServegymError, match=words):
            servegym.score(asked, options.pop("panel", PANEL), **options)


def test_a_process_that_was_killed_is_started_again() -> None:
    assert scored("edf").panel == "small"
    process = client.server._process
    assert process is not None
    process.kill()
    process.wait()
    assert scored("edf").panel == "small"
    assert client.server._process is not process and client.server._owner == os.getpid()
