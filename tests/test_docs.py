"""What the pages tell a reader to do works."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import servegym
from experiments.claims.harness import prose, registry
from experiments.claims.harness.study import Study
from servegym.envs import registration
from servegym.envs.agents import BaseAgent, play
from servegym.latency_models.forms import forms
from servegym.latency_models.profile import load_profile
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.records.types import BATCH
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.readers import READERS, read_trace
from tests.envs.small import THREE, outcome_bytes, simulated
from tests.experiments.claims.synthetic import TINY

ROOT = Path(__file__).parents[1]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that puts a page's block into the folder its first line names, as if it lay there, until the end."""
    modules = []

    def add(page: str, file: str) -> str:
        (code,) = [code for code in python_blocks(page) if code.startswith(f"# {file}\n")]
        *folders, name = file.removesuffix(".py").split("/")
        package = importlib.import_module(".".join(folders if folders[0] == "experiments" else ["servegym", *folders]))
        (tmp_path / Path(file).name).write_text(code, "utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        modules.append(f"{package.__name__}.{name}")
        return modules[-1]

    yield add
    for module in modules:
        sys.modules.pop(module, None)
        parent, _, name = module.rpartition(".")
        vars(sys.modules[parent]).pop(name, None)


@pytest.mark.slow
def test_the_schedulers_of_the_extending_page_run_and_are_one(tmp_path: Path) -> None:
    """A score in ten lines, and the same policy as ranks."""
    found = []
    codes = python_blocks("docs/extending.md")[0], python_blocks("docs/policy_reference.md")[0]
    for name, code in zip(("score", "ranks"), codes, strict=True):
        file = tmp_path / f"{name}.py"
        file.write_text(code, "utf-8")
        command = [sys.executable, "-m", "servegym", "simulate", "--load-policies", str(file), "--requests", "50"]
        done = subprocess.run(
            [*command, "--scheduler", "least-laxity:max_num_batched_tokens=256", "--json", "-"],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(
            {key: value for key, value in json.loads(done.stdout).items() if key not in ("wall_s", "arguments")}
        )
    assert found[0] == found[1] and found[0]["finished"] == 50


def test_the_first_lines_of_python_in_the_readme_run() -> None:
    names: dict = {}
    exec(python_blocks("README.md")[0], names)
    assert names["result"].summary["finished"] == len(names["result"].requests) == 1000


@pytest.mark.slow
def test_the_router_of_the_extending_page_runs(tmp_path: Path) -> None:
    file = tmp_path / "most_memory.py"
    file.write_text(
        next(code for code in python_blocks("docs/extending.md") if code.startswith(f"# {file.name}")), "utf-8"
    )
    command = [sys.executable, "-m", "servegym", "simulate", "--load-policies", str(file), "--requests", "50"]
    for engines in (["--engines", "3"], ["--prefill", "1", "--decode", "2"]):
        done = subprocess.run(
            [*command, *engines, "--router", "most-memory", "--json", "-"],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["finished"] == 50


@pytest.mark.slow
def test_each_change_of_the_extending_page_has_its_score(tmp_path: Path) -> None:
    file = tmp_path / "shortest_prompt.py"
    code = next(code for code in python_blocks("docs/extending.md") if code.startswith(f"# {file.name}"))
    page = (ROOT / "docs/extending.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| (?:`([^`]+)`)? *\| (0\.\d{4}) \| ([0-9.]+) \|", page, flags=re.MULTILINE)
    assert len(rows) == 4 and [row[1] for row in rows] == sorted(row[1] for row in rows)
    for line, score, attainment in rows:
        if line:
            code = re.sub(rf"^( *){re.escape(line[:6])}.*$", rf"\1{line}", code, flags=re.MULTILINE)
        file.write_text(code, "utf-8")
        found = servegym.score(file, least=0.0, limit_s=900.0)
        assert (f"{found.combined_score:.4f}", f"{found.metrics['slo_attainment']:.4f}") == (score, attainment)


def test_the_turns_of_the_prefix_caching_section_run() -> None:
    names: dict = {}
    exec(python_blocks("docs/engine_features.md")[0], names)
    assert names["result"].requests["cached_tokens"].tolist() == [0, 176]


@pytest.mark.nojit
def test_the_latency_form_of_its_page_is_an_estimator(added: Any) -> None:
    added("docs/latency_forms.md", "latency_models/forms/per_token.py")
    forms.cache_clear()
    try:
        estimator = load_profile("a100-llama3-8b:estimator=per-token").estimator
        c, t_c = estimator.coefficients
        batch = np.zeros(1, BATCH)
        batch["prefill_tokens"], batch["decode_requests"] = 300, 5
        assert estimator.form == "per-token" and c > 0 and t_c > 0
        assert estimator.evaluate(batch) == pytest.approx(305 * c + t_c)
        spec = ServingSpec().replaced(device="a100-llama3-8b:estimator=per-token", rate_per_s=2.0, requests=10)
        assert Simulation(spec.build()).run().summary["finished"] == 10
    finally:
        forms.cache_clear()


@pytest.mark.nojit
def test_the_trace_reader_of_its_page_reads(added: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(READERS, "_parts", dict(READERS._parts))
    importlib.import_module(added("docs/trace_reference.md", "traces/readers/gateway.py"))
    log = tmp_path / "log.csv"
    log.write_text("received_ms,user,tokens_in,tokens_out\n5600,ben,40,2\n5000,anna,12,3\n6900,anna,0,0\n", "utf-8")
    trace = read_trace(log)
    assert trace.provenance["format"] == "gateway" and trace.provenance["dropped_rows"] == 1
    assert trace.arrival_s is not None and trace.arrival_s.tolist() == [0, 0.6]
    assert trace.prompt_tokens.tolist() == [12, 40] and trace.output_tokens.tolist() == [3, 2]
    assert trace.labels == {"client": ("ben", "anna")}


class Vetoes:
    """An agent that lets no choice of the base router stand."""

    def act(self, observation: Any, info: dict[str, Any]) -> int:
        return 1


@pytest.mark.nojit
def test_the_environment_of_its_page_is_made_and_steps(added: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    added("docs/environment_reference.md", "envs/routing_veto.py")
    page = (ROOT / "docs/environment_reference.md").read_text("utf-8")
    (line,) = re.findall(r"^    (\(.*routing_veto.*\)),$", page, flags=re.MULTILINE)
    monkeypatch.setattr(registration, "ENVIRONMENTS", (ast.literal_eval(line),))
    monkeypatch.setattr(registration, "VERSIONS", {})
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(registration, "registry", gym.envs.registration.registry)
    registration.register_all()
    scenario = THREE.replaced(router="random", requests=12)(np.random.default_rng(0))
    env = gym.make("RoutingVeto-v0", scenario=scenario).unwrapped
    play(env, BaseAgent())
    alone = outcome_bytes(env.simulation.arrays)
    assert alone == simulated(env, scenario)
    play(env, Vetoes())
    assert outcome_bytes(env.simulation.arrays) != alone
    vector = gym.make_vec("RoutingVeto-v0", num_envs=2, vectorization_mode="vector_entry_point", scenario=scenario)
    assert vector.reset(seed=0)[0].shape == (2, *env.observation_space.shape)


@pytest.mark.filterwarnings("ignore:.*is out of date")  # ClusterRouting-v0, as its page says
def test_the_environments_page_runs_in_order_and_its_plan_is_made() -> None:
    names: dict[str, Any] = {}
    for block in python_blocks("docs/environments.md"):
        exec(block, names)
    assert names["over"] and names["best"] in names["candidates"] and names["gained"].max() > 0


def test_the_router_of_the_live_routers_page_chooses_an_engine(capsys: pytest.CaptureFixture) -> None:
    exec(python_blocks("docs/live_routers.md")[1], {})
    assert capsys.readouterr().out in [f"{name} [0 0 0]\n" for name in "abc"]


def test_the_claim_of_its_page_is_judged(added: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", registry.claims().copy())  # all the others have read their words by now
    monkeypatch.setattr(prose, "FOLDER", tmp_path)
    (words,) = re.findall(r"```markdown\n(.*?)```", (ROOT / "docs/claims.md").read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "example_edf.md").write_text(words, "utf-8")
    importlib.import_module(added("docs/claims.md", "experiments/claims/example_edf.py"))
    example = registry.find_claims(["example-edf"])[0]
    assert "above 0.05" in example.prose.hypothesis
    outcome = Study(example, TINY).run(tmp_path, lambda done, cells: None)
    (check,) = outcome.settings[0].checks
    assert len(check.values) == len(TINY.seeds) and np.isfinite(check.values).all()


def test_the_cluster_of_the_clusters_page_runs() -> None:
    names: dict = {}
    first, tiers, startup, incidents, prefixes = python_blocks("docs/clusters.md") + python_blocks("docs/fleets.md")
    exec(first, names)
    result = names["result"]
    assert result.summary["finished"] == 300
    assert list(result.engines["role"]) == ["prefill"] * 2 + ["decode"] * 3
    exec(tiers, names)
    summary = names["result"].summary
    assert summary["finished"] == 300 and summary["cost_engine_s"] < 6 * summary["span_s"]
    exec(startup, names)
    summary = names["result"].summary
    assert summary["finished"] == 3000 and 0 < summary["cost"] < 4 * 4.0 * summary["span_s"] / 3600
    assert summary["energy_kwh"] > 0
    exec(incidents, names)
    result = names["result"]
    assert result.summary["finished"] == 300 and result.summary["reroutes"] > 0
    assert list(result.engines["failures"]) == [1, 0, 0, 1, 0]
    exec(prefixes, names)
    assert names["result"].summary["cached_tokens"] > 0


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
