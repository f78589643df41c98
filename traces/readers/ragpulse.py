"""RAGPulse: a week of a retrieval-augmented service. Prompts are composed of parts with ids."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader
from servegym.traces.sessions import BLOCK_TOKENS, NO_ENDS, ordered
from servegym.traces.trace import Trace

END_OF_PARTS = 2**40  # above all ids; stands for prompt tokens that are in no part


@reader
class RagPulseReader(PublicReader):
    """`arrival_s, session, turn, prompt_tokens, output_tokens, part_ids, part_tokens`.

    Ends of answers are not recorded, so the time between two arrivals is taken as the pause after an answer. Simulated
    sessions are longer than the recorded ones by the time of their answers (seconds; the median pause is 40 s). Blocks
    of 16 tokens are named by the parts that they lie in; the few tokens of a prompt in no part are taken as its last.
    """

    name = "ragpulse"
    needs = ("arrival_s", "session", "turn", "prompt_tokens", "output_tokens", "part_ids", "part_tokens")
    format_of = "flashserve/RAGPulse 3672232"
    block_tokens = BLOCK_TOKENS

    def columns(self, chunk: Chunk) -> Columns:
        counts, ids = chunk.lists("part_ids")
        tokens_counts, tokens = chunk.lists("part_tokens")
        chunk.check("part_tokens", tokens_counts != counts, "as many numbers as part_ids")
        prompt_tokens = chunk.lengths("prompt_tokens")
        of_parts = np.bincount(np.repeat(np.arange(len(counts)), counts), tokens, len(counts))
        chunk.check("part_tokens", of_parts > prompt_tokens, "no more tokens than the prompt has")
        block_counts, block_ids = blocks_of_parts(prompt_tokens, counts, ids, tokens)
        return {
            "ticks": chunk.times("arrival_s", "seconds"),
            "prompt_tokens": prompt_tokens,
            "output_tokens": chunk.lengths("output_tokens"),
            "session": chunk.codes("session"),
            "turn": chunk.codes("turn"),
            "block_counts": block_counts,
            "block_ids": block_ids,
        }

    def settled(self, trace: Trace) -> Trace:
        assert trace.arrival_s is not None and trace.prefix_blocks is not None
        session, turn = self.rows["session"], self.rows["turn"]
        order = ordered(session, turn, trace.arrival_s)
        trace, session = trace.take(order), session[order]
        begins = np.r_[True, session[1:] != session[:-1]]
        after = np.where(begins, -1, np.arange(len(session)) - 1)
        arrival_s = trace.arrival_s
        assert arrival_s is not None
        think_s = np.where(begins, 0.0, arrival_s - np.r_[0.0, arrival_s[:-1]])
        if (think_s < 0).any():
            at = int(np.argmax(think_s < 0))
            raise WorkloadError(f"{self.path.name}: a turn of session {session[at]} arrives before the one before it")
        self.notes.append(NO_ENDS)
        return dataclasses.replace(
            trace,
            arrival_s=np.where(begins, arrival_s - arrival_s[begins].min(), np.nan),
            turns=SessionDependencies(after, think_s),
            provenance={**trace.provenance, "format_of": self.format_of},
        )


def blocks_of_parts(
    prompt_tokens: np.ndarray, counts: np.ndarray, ids: np.ndarray, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """int64[rows]: number of blocks of 16 tokens of each prompt. int64[...]: numbers of the blocks, equal for blocks
    that lie in the same parts; such blocks have equal tokens if those before them do."""
    numbers: dict[tuple[int, ...], int] = {}
    found: list[int] = []
    ends = np.cumsum(counts)
    for row, end in enumerate(ends.tolist()):
        parts = [*ids[end - counts[row] : end].tolist(), END_OF_PARTS + row]
        part_ends = np.cumsum(tokens[end - counts[row] : end])
        starts = np.arange(0, int(prompt_tokens[row]) // BLOCK_TOKENS) * BLOCK_TOKENS
        first = np.searchsorted(part_ends, starts, "right")
        last = np.searchsorted(part_ends, starts + BLOCK_TOKENS - 1, "right")
        for begin, stop in zip(first.tolist(), last.tolist(), strict=True):
            found.append(numbers.setdefault(tuple(parts[begin : stop + 1]), len(numbers)))
    return prompt_tokens.astype("i8") // BLOCK_TOKENS, np.array(found, "i8")
