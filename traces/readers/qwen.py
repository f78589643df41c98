"""Qwen-Bailian: requests to a Qwen service of Alibaba Cloud, with their type and prefix blocks of 16 tokens."""

import numpy as np

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader
from servegym.traces.sessions import NO_ENDS, in_sessions
from servegym.traces.trace import Trace

ROOT = -1  # in place of a parent


@reader
class QwenReader(PublicReader):
    """JSON lines as format_of. The type (text, search, image, file) becomes the application.

    A request with a `parent_chat_id` is the turn after that one, if the file has it; -1 begins a conversation. Written
    from the documented fields, not tested with a published file.
    """

    name = "qwen-bailian"
    needs = ("chat_id", "timestamp", "input_length", "output_length")
    optional = ("type", "hash_ids", "parent_chat_id")
    format_of = "alibaba-edu/qwen-bailian-usagetraces-anon"
    prompt, output, time = "input_length", "output_length", ("timestamp", "seconds")
    block_tokens = 16

    def columns(self, chunk: Chunk) -> Columns:
        columns = super().columns(chunk)
        if "type" in chunk:
            columns["application"] = self.labels.codes(chunk, "type", "application")
        if "parent_chat_id" in chunk:
            right = "a whole number; -1 begins a conversation"
            for name in ("chat_id", "parent_chat_id"):
                ids = chunk.numbers(name, right, ROOT if name == "parent_chat_id" else None)
                chunk.check(name, (ids < ROOT) | (ids != np.floor(ids)) | (ids > 2**53), right)
                columns[name] = ids.astype("i8")
        return columns

    def settled(self, trace: Trace) -> Trace:
        trace = super().settled(trace)
        if "parent_chat_id" not in self.rows:
            return trace
        assert trace.arrival_s is not None
        parents = dict(zip(self.rows["chat_id"].tolist(), self.rows["parent_chat_id"].tolist(), strict=True))
        seen: dict[int, int] = {}  # by chat_id, those above
        after, lost = np.full(len(trace), -1), 0
        for row, at in enumerate(self.kept.tolist()):
            parent = named = int(self.rows["parent_chat_id"][at])
            passed: set[int] = set()
            while parent not in seen and parent in parents and parent not in passed:
                passed.add(parent)  # the parent was dropped: follow the parent's parent
                parent = parents[parent]
            after[row] = seen.get(parent, -1)
            lost += named != ROOT and after[row] < 0
            seen[int(self.rows["chat_id"][at])] = row
        if lost:
            self.notes.append(
                f"{lost} turn{'s' * int(lost > 1)} whose parent is not in an earlier row: each begins a conversation"
            )
        if (after >= 0).any():
            self.notes.append(NO_ENDS)
        return in_sessions(trace, after, trace.arrival_s - trace.arrival_s[np.maximum(after, 0)])
