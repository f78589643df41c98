"""What can be wrong with the place where a study is kept."""

from servegym.tuners.search.errors import SearchError


class StorageError(SearchError):
    """A database that does not answer, a damaged journal, a storage that there is none of."""


class ForeignStudyError(StorageError):
    """The study under this name is another one, or none of ours."""


class WorkError(SearchError):
    """A trial that cannot be finished: its objective is not a number, or its workers die of it."""
