"""How long a prefill takes alone, in chunks of a token budget."""

from servegym.policy import batches, kernel


@kernel
def prefill_alone_s(tokens, cached, budget, batch, batch_s, coefficients):
    """Estimated time of a prefill of `tokens` after `cached` ones: number of chunks times a batch of a chunk halfway.

    The number of chunks is not rounded up: the remainder runs with the chunk before it. `batch` is working memory.
    """
    chunk = min(tokens, budget)
    batches.clear(batch)
    batches.add(batch, chunk, cached + (tokens - chunk) / 2, False)
    return max(1.0, tokens / budget) * batch_s(batch, coefficients)
