"""How long a prefill takes alone, in chunks of a token budget."""

from servegym.simulator import batches
from servegym.simulator.compilation import kernel


@kernel
def prefill_alone_s(tokens, cached, budget, batch, batch_s, coefficients):
    """Estimated time of a prefill of so many tokens after cached ones: chunks times a batch of one, halfway through.

    The last chunk is not rounded up: what is left over runs with the one before it. `batch` is to work with.
    """
    chunk = min(tokens, budget)
    batches.clear(batch)
    batches.add(batch, chunk, cached + (tokens - chunk) / 2, False)
    return max(1.0, tokens / budget) * batch_s(batch, coefficients)
