"""What `harbor run` needs to try the tasks without containers and without a language model: an environment, an agent.

In an environment of its own, with servegym and Harbor (tried: 0.26.0, Python 3.12):

    python -m experiments.evolution.forms harbor build/harbor
    python3.12 -m venv .harbor && .harbor/bin/pip install -e . harbor
    sudo mkdir -p /app /tests /solution /logs     # empty folders, to mount over
    PATH=$PWD/.harbor/bin:$PATH harbor run -p build/harbor --env experiments.evolution.harbor_run:HereEnvironment \\
        --agent experiments.evolution.harbor_run:MutatingAgent --n-concurrent 1 --yes

HereEnvironment runs a task's commands on this machine, as root, with the task's folders mounted over /app, /tests,
/solution and /logs for that command alone: for tasks that you trust. It shows that task and verifier are what Harbor
takes; it does not show that the image builds.
"""

import asyncio
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from experiments.evolution.mutator import mutated

MOUNTED = ("app", "tests", "solution", "logs")
PROGRAM = "/app/program.py"


class HereEnvironment(BaseEnvironment):
    """This machine, with a folder of its own below each of `MOUNTED`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._root = Path()

    @staticmethod
    def type() -> str:
        return "here"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(f"no Dockerfile in {self.environment_dir}")

    async def start(self, force_build: bool) -> None:
        """Make the folders, with what the container file copies into /app."""
        self._root = Path(tempfile.mkdtemp(prefix="harbor-here-"))
        for name in (*MOUNTED, "logs/agent", "logs/verifier", "logs/artifacts"):
            (self._root / name).mkdir()
        for file in self.environment_dir.glob("p*.[py]*"):  # program.py, panel.yaml
            shutil.copy(file, self._root / "app")

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self._root)

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self._at(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._at(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._at(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(self._at(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._at(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        mounts = "".join(f"mount --bind {self._root / name} /{name} && " for name in MOUNTED)
        settings = "".join(f"{name}={shlex.quote(value)} " for name, value in (self._merge_env(env) or {}).items())
        script = f"{mounts}cd {cwd or '/app'} && env {settings}bash -c {shlex.quote(command)}"
        process = await asyncio.create_subprocess_exec(
            "unshare", "-m", "bash", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)


class MutatingAgent(BaseAgent):
    """Mutates the program `steps` times. refused: adds an import that no policy may have."""

    def __init__(self, *arguments: Any, steps: int = 1, seed: int = 0, refused: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._steps, self._random, self._refused = steps, np.random.default_rng(seed), refused

    @staticmethod
    def name() -> str:
        return "mutating"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing to install."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: Any) -> None:
        program = (await environment.exec(f"cat {PROGRAM}")).stdout or ""
        for _ in range(self._steps):
            program = mutated(program, self._random)
        with tempfile.TemporaryDirectory() as folder:
            changed = Path(folder) / "program.py"
            changed.write_text(f"import os\n{program}" if self._refused else program, "utf-8")
            await environment.upload_file(changed, PROGRAM)
