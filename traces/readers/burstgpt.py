"""BurstGPT: one row a request to ChatGPT or GPT-4 of a university, with a clock in whole seconds."""

import numpy as np

from servegym.traces.cells import Chunk, Labels
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader
from servegym.traces.sessions import NO_ENDS, in_sessions
from servegym.traces.trace import Trace


@reader
class BurstGptReader(PublicReader):
    """CSV as format_of, of releases 1 and 2. The log type (conversation or API) becomes the application.

    In release 2, rows with the same Session ID are turns of a session, each after the end of the one before (Timestamp
    + Elapsed time); a blank ID is no session. Written from the documented columns, not tested with a file of release 2.
    """

    name = "burstgpt"
    needs = ("Timestamp", "Request tokens", "Response tokens")
    optional = ("Log Type", "Session ID", "Elapsed time")
    format_of = "HPMLL/BurstGPT"
    prompt, output, time = "Request tokens", "Response tokens", ("Timestamp", "seconds")

    def columns(self, chunk: Chunk) -> Columns:
        columns = super().columns(chunk)
        if "Log Type" in chunk:
            columns["application"] = self.labels.codes(chunk, "Log Type", "application")
        if "Session ID" in chunk:
            columns["session"] = self._sessions(chunk)
        if "Elapsed time" in chunk:
            right = "seconds of 0 or more, or empty"
            elapsed_s = chunk.numbers("Elapsed time", right, np.nan)
            chunk.check("Elapsed time", (elapsed_s < 0) | np.isinf(elapsed_s), right)
            columns["elapsed_s"] = elapsed_s
        return columns

    def _sessions(self, chunk: Chunk) -> np.ndarray:
        """int64[rows]: a code for each session; -1: the row is in none."""
        if chunk.first_row == 1:
            self._session_names = Labels()
        names = chunk.frame["Session ID"].astype(str).str.strip().to_numpy(object)
        there = chunk.frame["Session ID"].notna().to_numpy() & (names != "")
        codes = np.full(len(chunk), -1, "i8")
        codes[there] = self._session_names.names("session", names[there])
        return codes

    def settled(self, trace: Trace) -> Trace:
        trace = super().settled(trace)
        if "session" not in self.rows:
            return trace
        assert trace.arrival_s is not None
        session, after = self.rows["session"][self.kept], np.full(len(trace), -1)
        rows = np.flatnonzero(session >= 0)
        rows = rows[np.argsort(session[rows], kind="stable")]  # grouped by session, each in order of time
        follows = np.flatnonzero(session[rows][1:] == session[rows][:-1]) + 1
        after[rows[follows]] = rows[follows - 1]
        pause_s = trace.arrival_s - trace.arrival_s[np.maximum(after, 0)]
        if "elapsed_s" in self.rows:
            pause_s -= np.nan_to_num(self.rows["elapsed_s"][self.kept][np.maximum(after, 0)])
        elif len(follows):
            self.notes.append(NO_ENDS)
        if early := int(((pause_s < 0) & (after >= 0)).sum()):
            self.notes.append(f"{early} turn{'s' * (early > 1)} before the end of the last one: moved to that end")
        return in_sessions(trace, after, np.maximum(pause_s, 0.0))
