"""Storages of studies, and the identity of a study.

A journal file in the study's folder serves all workers with access to the folder; a PostgreSQL database serves workers
on any machine. Both survive the end of any worker at any time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.errors import ForeignStudyError
from servegym.evaluation.ledger import differences

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.study import Study

    from servegym.tuners.search.database import SharedDatabase
    from servegym.tuners.search.journal import SharedJournal

    Shared = SharedDatabase | SharedJournal

IDENTITY = "servegym"  # attribute of a study with everything on which its results depend


def open_storage(url: str | None, folder: Path, *, grace_s: int = 60, patience_s: float = 300.0) -> Shared:
    """Open a storage for `open_study`.

    url: None for a journal, `study.journal` in the folder (made if missing); "postgresql+psycopg://..." for a database.
    grace_s: of a database; a worker on another machine without a heartbeat for longer counts as dead. (Killed workers
    of this machine, or of a journal, are noticed at once.)
    patience_s: time that a worker waits for an unavailable database before it ends with StorageError.
    Raises StorageError with one line about what is wrong with the storage.
    """
    if url is None:
        from servegym.tuners.search.journal import SharedJournal

        return SharedJournal(folder)
    from servegym.tuners.search.database import SharedDatabase

    return SharedDatabase(url, grace_s, patience_s)


def open_study(
    storage: Shared, name: str, identity: Mapping[str, Any], directions: Sequence[str], pruner: BasePruner
) -> Study:
    """Make a study, or continue one.

    identity: everything on which its results depend (space, panel, objective, first points, digests, versions), as
    JSON.
    directions: "maximize" or "minimize" for each objective.
    Raises ForeignStudyError, which names the differences, if the study of this name has another identity or none;
    StorageError if the storage is lost.
    """
    import optuna

    ours = json.loads(json.dumps(identity))
    with storage.exclusive(), quiet():
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            directions=[optuna.study.StudyDirection[direction.upper()] for direction in directions],
            load_if_exists=True,
            pruner=pruner,
        )
        attributes = study.user_attrs
        place = f"study {name!r} in {storage.name}"
        if IDENTITY not in attributes:
            if attributes or study.get_trials(deepcopy=False):
                raise ForeignStudyError(f"{place} was not made by servegym tune; take another name")
            study.set_user_attr(IDENTITY, ours)  # a new study, or one whose maker was killed just before this
        elif attributes[IDENTITY] != ours:
            found_one = attributes[IDENTITY]
            of_a_study = isinstance(found_one, Mapping)
            what_differs = differences(found_one, ours) if of_a_study else "its identity cannot be read"
            raise ForeignStudyError(
                f"{place} is another one: {what_differs}; take another name (tune --name), or the settings it was made "
                "with"
            )
        found = [direction.name.lower() for direction in study.directions]
        if found != list(directions):
            raise ForeignStudyError(f"{place} is another one: it is to {found}, not to {list(directions)}")
    return study


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's messages except errors."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
