"""Where chunks end at an engine that caches states with prefixes, as in vLLM's `mamba_cache_mode` "align".

"States with prefix caching" of docs/feature_rules.md.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.memory.grouped_prefixes import JUNCTION
from servegym.simulator.memory.kv_groups import STATES, last_end, writes_inside
from servegym.simulator.records.requests import is_decoding


@kernel
def keeps_states(engine):
    """Return whether the engine caches states, which are kept where chunks end."""
    return engine.kv_groups.local == STATES


@kernel
def up_to_state(run, e, r, chunk):
    """Return the chunk of request r, cut to where a state is kept; 0: it waits until a whole block fits the budget."""
    request, engine, limits = run.requests[r], run.engines[e], run.limits[0]
    if limits.whole_prompts or is_decoding(request):
        return chunk
    size, start, context = (
        engine.kv_groups.window_block_tokens,
        request.computed_tokens,
        request.prompt_tokens + request.num_output_tokens,
    )
    end, prefill = start + chunk, max(request.prompt_tokens, context - 1)
    inside = writes_inside(engine.kv_groups, request, start, end) and start + size <= last_end(
        engine.kv_groups, prefill
    )
    if end < prefill:
        boundary = end // size * size
        if boundary > start or size <= min(limits.max_num_batched_tokens, limits.chunk_tokens):
            end = boundary
    if start % size != 0:
        end = earlier_stop(start, (start // size + 1) * size, end)
    junction = run.cache.tables[run.outcomes[r].table + JUNCTION]
    if start < junction < end:
        end = earlier_stop(start, junction // size * size, end)
    if not inside:
        end = earlier_stop(start, last_end(engine.kv_groups, context), end)
    return max(0, end - start)


@kernel
def earlier_stop(start, stop, end):
    """Return where a chunk ends that must not go on beyond `stop`, if `stop` is inside it."""
    return stop if start < stop < end else end


@kernel
def back_to_state(request, engine, chunk):
    """Return a chunk that the time budget has cut, cut further to the last block boundary in it, if there is one."""
    size = engine.kv_groups.window_block_tokens
    end = (request.computed_tokens + chunk) // size * size
    return end - request.computed_tokens if end > request.computed_tokens else chunk
