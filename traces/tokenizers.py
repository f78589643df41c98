"""How many tokens a text has, for traces of texts. The user names the tokenizer; none is guessed.

The estimate is "characters/N" (4 suits English); any function from text to tokens, or to their number, is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sized

from servegym.errors import WorkloadError

Tokenizer = Callable[[str], "int | Sized"]
ESTIMATE = "characters/"


def token_counter(tokenizer: Tokenizer | str) -> Callable[[str], int]:
    """Make a function from text to its number of tokens; any text but the empty one has at least 1.

    Raises WorkloadError for an unknown name.
    """
    if not isinstance(tokenizer, str):
        return lambda text: _count(tokenizer(text))
    try:
        characters = float(tokenizer.removeprefix(ESTIMATE)) if tokenizer.startswith(ESTIMATE) else 0.0
    except ValueError:
        characters = 0.0
    if not 0 < characters < float("inf"):
        raise WorkloadError(
            f"a tokenizer of '{tokenizer}'; it should be an estimate such as characters/4, or in Python a function"
        )
    return lambda text: max(round(len(text) / characters), 1) if text else 0


def tokenizer_name(tokenizer: Tokenizer | str) -> str:
    """Say what to call a tokenizer in the provenance."""
    return tokenizer if isinstance(tokenizer, str) else getattr(tokenizer, "__qualname__", type(tokenizer).__name__)


def _count(tokens: int | Sized) -> int:
    return tokens if isinstance(tokens, int) else len(tokens)
