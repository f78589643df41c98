"""Where the runs of a command run, and where they are kept: `--jobs`, `--ray`, `--out`, `--fresh`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from servegym.cli import options
from servegym.cli.output import check_output_folder, console_for, progress_console, write_json
from servegym.cli.progress import T, bounds_or_why, kept_work
from servegym.cli.spec_options import Command, option_set
from servegym.evaluation import policy_files
from servegym.evaluation.policy_files import PolicyFiles

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.evaluation.running import Progress, Runner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """The options of a command that keeps its runs in a folder, with their defaults.

    Making one checks `--out` and loads the files of policies: raises ServegymError and PolicyError.
    """

    load_policies: options.LoadPolicies = None
    check: options.Check = None
    jobs: options.Jobs = None
    ray: options.Ray = None
    out: Path | None = None  # `work_options` makes its option
    fresh: options.Fresh = False
    json: options.Json = None

    def __post_init__(self) -> None:
        if self.out is not None:
            check_output_folder(self.out)
        load_policy_files(self.load_policies, self.check)

    @contextlib.contextmanager
    def kept(self, what: str, count: int, path: Path) -> Iterator[tuple[Runner, Progress]]:
        """Yield the runner and a progress function, for work that is kept in a file or folder.

        what: what is counted, such as "runs". count: the number in all.
        """
        with (
            runner_of(self.jobs, self.ray, self.load_policies) as runner,
            kept_work(what, count, path, self.fresh) as progress,
        ):
            yield runner, progress

    def beside(self, directory: Path, name: str) -> Path:
        """Return a folder that all evaluations share: in `--out` if given, else beside the default folder."""
        return (self.out or directory.parent) / name

    def bounds(self, find: Callable[[Progress], T], kept: str) -> tuple[T | None, str | None]:
        """Find bounds as `bounds_or_why` does, and print the reason if there are none."""
        found, why = bounds_or_why(find, kept)
        return found, no_bound(why)

    @property
    def console(self) -> Console:
        return console_for(self.json)

    def written(self, files: Iterable[Path]) -> None:
        """Print the names of written files."""
        self.console.print("Written:", ", ".join(map(str, files)))

    def write_json(self, document: Mapping[str, Any]) -> None:
        write_json(document, self.json)


def no_bound(why: str | None) -> str | None:
    """Print the reason why runs cannot be compared with the bound, unless it is None; returns it."""
    if why is not None:
        progress_console().print(f"No share of the bound: {why}.")
    return why


def work_options(
    shown: str, help: str = "Folder for results. Runs that it has are not repeated.", without: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Give a command the options of `Work`, except those in `without`, as its argument `work`.

    shown: the default of `--out` in words; "": nothing is written without it. help: of `--out`.
    """
    out = Annotated[Path | None, options.option(options.OUT_METAVAR, help, options.OUTPUT, show_default=shown or False)]
    return option_set(Work, "work", without, {"out": out})


@contextlib.contextmanager
def runner_of(jobs: int | None, ray: str | None, policy_files: Iterable[Path] | None = None) -> Iterator[Runner]:
    """Yield a runner: threads, or Ray, which gets the files of policies.

    jobs: None: one a core. Raises ClusterError for a cluster that cannot be used.
    """
    if ray is None:
        from servegym.evaluation.running import ThreadRunner

        yield ThreadRunner(jobs)
        return
    from servegym.evaluation.ray_running import RayRunner

    files = PolicyFiles.read(policy_files)
    with RayRunner(ray, jobs, files.load if files.texts else None) as runner:
        yield runner


def load_policy_files(paths: Iterable[Path] | None, check: bool | None = None) -> None:
    """Import each file, and check those that have not passed since their last change.

    check: True: check all again; False: check none. Raises PolicyError for a file that is missing, raises an exception,
    or does not pass.
    """
    paths = list(paths or ())
    policy_files.load_policy_files(paths)
    if check is False or not paths:
        return
    from servegym.evaluation.policy_checks.checking import check_policy

    for path in dict.fromkeys(path.resolve() for path in paths):
        check_policy(path, again=check is True)
