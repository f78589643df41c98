"""On Ray: the same results as in threads, whatever happens to nodes; and in one line what is wrong with a cluster.

All of it on one cluster of one CPU a node, so in one file.
"""

import dataclasses
import functools
import json
import operator
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster

from experiments.claims.harness.registry import find_claims
from experiments.claims.harness.study import Study
from servegym.errors import ClusterError, WorkloadError
from servegym.evaluation import comparing, ray_cluster, ray_running
from servegym.evaluation.ledger import Ledger
from servegym.evaluation.ray_running import RayRunner
from servegym.evaluation.running import results_of
from servegym.extras import install_command
from tests.experiments.claims.synthetic import TINY
from tests.test_docs import python_blocks

pytestmark = pytest.mark.slow

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}

# Workers cannot import tests: functions of this module go to them as they are.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def runner(cluster: Cluster) -> Iterator[RayRunner]:
    """Of its own connection: what is started while it is there takes the same."""
    with RayRunner(cluster.address) as runner:
        yield runner


def where(seconds: float) -> str:
    """The node that slept so long."""
    time.sleep(seconds)
    return str(ray.get_runtime_context().get_node_id())


def refuse(item: int) -> None:
    raise WorkloadError(f"item {item} is wrong")


def fail(item: int) -> None:
    raise ZeroDivisionError(f"item {item}")


def twice_in_place(numbers: np.ndarray, item: int) -> float:
    numbers *= 2
    return float(numbers[item])


def die(flag: str, item: int) -> int:
    """Kill the worker at the first call."""
    if not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_comparison_loses_a_node_and_gives_the_table_of_one_process(cluster, servegym, monkeypatch, tmp_path):
    arguments = (
        "compare", "--scheduler", "edf", "--scheduler", "slide-batching:gamma=2",
        "--scheduler", "learned:cma-engine-batching", "--load", "1.0", "--load", "1.4", "--seeds", "8",
        "--requests", "1500",
    )  # fmt: skip
    assert servegym(*arguments, "--out", "one", "--json", "one.json").status == 0
    node, seen = cluster.add_node(**NODE), []

    class LosesNode(Ledger):
        def append(self, row):
            super().append(row)
            seen.append(sum(node["Alive"] for node in ray.nodes()))  # it takes seconds until one is known to be dead
            if len(self.rows) == 8:
                cluster.remove_node(node, allow_graceful=False)

    monkeypatch.setattr(comparing, "Ledger", LosesNode)
    done = servegym(*arguments, "--out", "two", "--ray", cluster.address, "--json", "-")
    assert done.status == 0, done.stderr
    assert seen[:8] == [2] * 8 and len(seen) == 3 * 2 * 8
    for name in ("cells.parquet", "summary.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    ledgers = [(tmp_path / folder / "cells.jsonl").read_text().splitlines() for folder in ("one", "two")]
    assert ledgers[0][0] == ledgers[1][0]
    assert sorted(ledgers[0]) == sorted(ledgers[1])
    document = json.loads(done.stdout)  # and nothing of Ray's on standard output
    assert document["summary"] == json.loads((tmp_path / "one.json").read_text())["summary"]
    assert not ray.is_initialized()


def test_tasks_that_were_running_on_a_node_that_dies_run_again(cluster):
    node, nodes = cluster.add_node(**NODE), set()
    with RayRunner(cluster.address) as runner:
        for number, (_, name) in enumerate(runner.run(where, [0.4] * 14)):
            nodes.add(name)
            if number == 4:
                cluster.remove_node(node, allow_graceful=False)
    assert number == 13
    assert len(nodes) == 2


def test_a_worker_that_dies_is_replaced(runner, tmp_path):
    assert results_of(runner, functools.partial(die, str(tmp_path / "flag")), range(3)) == [0, 1, 2]


def test_evolution_learns_the_same_weights(runner, cluster, servegym, tmp_path):
    pytest.importorskip("cmaes")
    pytest.importorskip("stable_baselines3")
    from servegym.baselines.artifact.files import load_policy
    from servegym.tuners import evolution
    from servegym.tuners.config import to_text
    from tests.tuners.test_evolution import config_of

    here = evolution.train(config_of(), tmp_path / "here")
    (tmp_path / "mine.yaml").write_text(to_text(config_of()))
    done = servegym("train", "mine.yaml", "--out", "there", "--ray", cluster.address)
    assert done.status == 0, done.stderr
    assert load_policy(tmp_path / "there/policy.json").weights == here.weights
    curves = [
        pd.read_json(tmp_path / name / "curve.jsonl", lines=True).drop(columns="minutes") for name in ("here", "there")
    ]
    pd.testing.assert_frame_equal(*curves)


def test_a_claim_has_the_same_outcome(runner, tmp_path):
    study = Study(*find_claims(["proserve-fig15"]), TINY)
    here, there = (
        study.run(tmp_path / name, lambda done, cells: None, runner=used)
        for name, used in (("here", None), ("there", runner))
    )
    assert there.to_json() == here.to_json()
    pd.testing.assert_frame_equal(there.rows, here.rows)


def test_an_evaluation_has_the_same_runs(runner, cluster, servegym, tmp_path):
    arguments = (
        "evaluate", "--scheduler", "edf", "--scheduler", "sjf", "--trace", "azure-code", "--device", "a100-llama3-8b",
        "--load", "1.4", "--seeds", "2", "--requests", "60", "--out",
    )  # fmt: skip
    assert servegym(*arguments, "here").status == 0
    done = servegym(*arguments, "there", "--ray", cluster.address)
    assert done.status == 0, done.stderr
    assert (tmp_path / "here/runs.parquet").read_bytes() == (tmp_path / "there/runs.parquet").read_bytes()


def test_policies_from_a_file_go_along_to_nodes_that_do_not_have_it(
    runner, cluster, servegym, servegym_process, monkeypatch, tmp_path
):
    file = tmp_path / "least_laxity.py"
    file.write_text(python_blocks("docs/extending.md")[0], "utf-8")
    arguments = (
        "compare", "--load-policies", "least_laxity.py", "--scheduler", "least-laxity", "--load", "1.4",
        "--seeds", "2", "--requests", "100", "--out",
    )  # fmt: skip
    assert servegym_process(*arguments, "here").status == 0

    class HidesFile(Ledger):
        def __enter__(self):
            file.rename(tmp_path / "elsewhere.py")
            return super().__enter__()

    monkeypatch.setattr(comparing, "Ledger", HidesFile)
    done = servegym(*arguments, "there", "--ray", cluster.address)
    assert done.status == 0, done.stderr
    assert (tmp_path / "here/cells.parquet").read_bytes() == (tmp_path / "there/cells.parquet").read_bytes()


def test_a_function_of_what_workers_lack_is_told(runner):
    function = Unknown("servegym.evaluation.running", "no_such_function")
    with pytest.raises(ClusterError, match=r"cannot make the runs: .*no_such_function.* --load-policies"):
        results_of(runner, function, range(2))


class Unknown:
    """Pickled as something that there is not."""

    def __init__(self, module: str, name: str):
        self.name = f"{module}\n{name}"

    def __reduce__(self):
        return pickle._getattribute, (__import__("servegym.evaluation.running").evaluation.running, "no_such_function")

    def __call__(self, item):
        return item


def test_errors_of_runs_arrive_as_what_they_are(runner):
    with pytest.raises(WorkloadError, match=r"^item 0 is wrong$"):
        results_of(runner, refuse, range(5))
    with pytest.raises(ZeroDivisionError, match="item 0"):
        results_of(runner, fail, range(5))


def test_what_is_written_to_is_each_call_s_own(runner):
    mine = np.ones(4)
    assert results_of(runner, functools.partial(twice_in_place, mine), range(2)) == [2.0, 4.0]
    assert (mine == 1).all()


def test_other_code_on_a_node_is_refused(runner, monkeypatch):
    here = ray_running.code_here()
    other = dataclasses.replace(here, versions=(("servegym", "9.9"), *here.versions[1:]))
    monkeypatch.setattr(ray_running, "code_here", lambda: other)
    with pytest.raises(ClusterError, match=r"has other code: servegym 0\.\S+ there, 9\.9 here; install the same"):
        results_of(runner, operator.neg, range(2))
    monkeypatch.setattr(ray_running, "code_here", lambda: dataclasses.replace(here, digest="0" * 16))
    with pytest.raises(ClusterError, match="other files of servegym there than here"):
        results_of(runner, operator.neg, range(2))


@pytest.fixture
def unconnected() -> None:
    if ray.is_initialized():
        ray.shutdown()
    ray_running.code_here.cache_clear()  # files may be edited while tests run; these tests begin with new workers


@pytest.mark.usefixtures("unconnected")
class TestUnusable:
    """After the tests that share a connection: each of these makes its own, or none."""

    def test_a_node_without_servegym(self, cluster, tmp_path):
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\n"
            "class Without:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.partition('.')[0] == 'servegym':\n"
            "            raise ModuleNotFoundError(\"No module named 'servegym'\", name='servegym')\n"
            "sys.meta_path.insert(0, Without())\n"
        )
        node = cluster.add_node(**NODE | {"num_cpus": 4}, env_vars={"PYTHONPATH": str(tmp_path)})
        try:
            with RayRunner(cluster.address) as runner, pytest.raises(ClusterError, match="lacks servegym: install"):
                results_of(runner, time.sleep, [0.1] * 20)
        finally:
            cluster.remove_node(node)

    def test_another_version_of_ray(self, cluster, monkeypatch, servegym):
        monkeypatch.setattr(ray, "__version__", "1.2.3")
        done = servegym("compare", "--requests", "20", "--seeds", "1", "--ray", cluster.address)
        assert (done.status, done.stdout) == (2, "")
        assert f"Ray cluster {cluster.address}: it has Ray " in done.stderr
        assert "here are Ray 1.2.3 and Python" in done.stderr and len(done.stderr.splitlines()) == 1

    @pytest.mark.parametrize(("address", "problem"), [
        ("127.0.0.1:1", ":1 cannot be reached (Connection refused); it should be local, auto, or HOST:PORT"),
        ("there", "'there' is no address; it should be local"),
        ("127.0.0.1:123456", "is no address"),
        ("ray://127.0.0.1:10001", "Ray's client protocol is not supported"),
    ])  # fmt: skip
    def test_no_cluster_there(self, servegym, servegym_process, tmp_path, address, problem):
        for command in (("compare", "--seeds", "1", "--requests", "20"), ("reproduce", "proserve-fig15")):
            call = servegym_process if command[0] == "reproduce" else servegym  # a study has a process of its own
            assert problem in call(*command, "--out", "out", "--ray", address).refusal
            assert not (tmp_path / "out").exists()

    def test_no_cluster_on_this_machine(self, monkeypatch):
        text = ConnectionError("Could not find any running Ray instance. Please specify the one to connect to ...")
        assert "start one with ray start --head" in ray_cluster.connection_problem(text)
        assert ray_cluster.connection_problem(ValueError("two\n lines")) == "two lines"

    def test_a_runner_that_is_not_connected(self):
        with pytest.raises(ClusterError, match="use RayRunner in a with statement"):
            results_of(RayRunner("local"), operator.neg, [1])
        assert not ray.is_initialized()

    def test_no_ray(self, monkeypatch, servegym):
        monkeypatch.setitem(sys.modules, "ray", None)
        refusal = servegym("compare", "--seeds", "1", "--requests", "20", "--ray", "local").refusal
        assert f"--ray takes a package that is not installed: {install_command('ray')}" in refusal

    def test_runs_that_are_lost_for_good(self):
        lost = ray_cluster.task_problem(ray.exceptions.WorkerCrashedError())
        assert isinstance(lost, ClusterError)
        assert "\n" not in str(lost) and "lost runs, however often" in str(lost) and "WorkerCrashedError" in str(lost)

    def test_a_connection_to_another_cluster(self, cluster):
        with RayRunner(cluster.address):
            with pytest.raises(ClusterError, match=r"10\.0\.0\.9:6379: this process is connected to .* already"):
                RayRunner("10.0.0.9:6379").__enter__()
            with RayRunner("auto") as again:
                assert results_of(again, operator.neg, [1]) == [-1]
            assert ray.is_initialized(), "the inner one had not begun it, and does not end it"
        assert not ray.is_initialized()

    def test_training_that_has_nothing_to_spread(self, servegym):
        refusal = servegym("train", "ppo-scheduling-overload", "--ray", "local").refusal
        assert "--ray local: only the algorithm cma has scenarios" in refusal

    def test_ctrl_c_keeps_the_rows_and_ends_the_cluster(self, tmp_path):
        arguments = ("compare", "--ray", "local", "--jobs", "1", "--load", "1.4", "--seeds", "60", "--out", "out")
        started = subprocess.Popen(
            [sys.executable, "-m", "servegym", *arguments], cwd=tmp_path, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"RAY_raylet_start_wait_time_s": "120"},
        )  # fmt: skip
        ledger, until_s = tmp_path / "out/cells.jsonl", time.monotonic() + 120
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 4:
            assert started.poll() is None, started.communicate()[1]
            assert time.monotonic() < until_s
            time.sleep(0.1)
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does: to all of them
        stdout, stderr = started.communicate(timeout=60)
        assert (started.returncode, stdout) == (130, "")
        kept = ledger.read_bytes().count(b"\n") - 1
        assert f"interrupted: {kept} of 480 runs are kept in out/cells.jsonl; the same command continues" in stderr
        until_s = time.monotonic() + 20
        while session(started.pid):
            assert time.monotonic() < until_s, f"still there: {session(started.pid)}"
            time.sleep(0.2)


def session(leader: int) -> list[str]:
    """The processes of a session that live."""
    listed = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [args[0] if args else "" for sid, state, *args in rows if sid == str(leader) and state[0] != "Z"]
