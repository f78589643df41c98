"""ShareGPT as format_of: conversations as texts, of which the first exchange is a request."""

from typing import Any

import numpy as np

from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, reader
from servegym.traces.readers.public import PublicReader
from servegym.traces.tokenizers import token_counter, tokenizer_name
from servegym.traces.trace import Trace


@reader
class ShareGptReader(PublicReader):
    """A JSON list of conversations; turns are `{"from": ..., "value": text}`, as vLLM's benchmark reads them.

    The first turn of a conversation is the prompt and the second the answer; shorter conversations are dropped.
    """

    name = "sharegpt"
    needs = ("conversations",)
    format_of = "ShareGPT"
    of_texts = True

    def columns(self, chunk: Chunk) -> Columns:
        assert self.tokenizer is not None
        count = token_counter(self.tokenizer)
        exchanges = [_exchange(cell) for cell in chunk.frame["conversations"]]
        chunk.check(
            "conversations",
            np.array([exchange is None for exchange in exchanges]),
            'a list of turns such as {"from": "human", "value": "a text"}',
        )
        tokens = np.array([[count(text) for text in exchange or ()] for exchange in exchanges], "i8")
        return {"prompt_tokens": tokens[:, 0].astype("i4"), "output_tokens": tokens[:, 1].astype("i4")}

    def settled(self, trace: Trace) -> Trace:
        trace = super().settled(trace)
        assert self.tokenizer is not None
        return trace.noted(tokenizer=tokenizer_name(self.tokenizer))


def _exchange(conversation: Any) -> tuple[str, str] | None:
    """Read the texts of the first two turns, empty for missing turns; None for anything that is not a conversation."""
    if not isinstance(conversation, (list, np.ndarray)):
        return None
    texts = [
        turn["value"] for turn in conversation[:2] if isinstance(turn, dict) and isinstance(turn.get("value"), str)
    ]
    if len(texts) < len(conversation[:2]):
        return None
    return (texts[0], texts[1]) if len(texts) == 2 else ("", "")
