"""Where chunks of a request end at an engine that caches states with prefixes, as vLLM has it in `mamba_cache_mode`
"align" ("States with prefix caching" of docs/feature_rules.md)."""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.memory.grouped_prefixes import JUNCTION
from servegym.simulator.memory.kv_groups import STATES, last_end, writes_inside
from servegym.simulator.records.requests import is_decoding


@kernel
def keeps_states(engine):
    """Whether the engine caches states, which are kept where chunks end."""
    return engine.kv_groups.local == STATES


@kernel
def up_to_state(run, e, r, chunk):
    """The chunk of request r, or its part up to where a state is kept; 0: a later batch has room for a whole block."""
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
    """Where a chunk ends that has to stop at `stop`, if it comes to it."""
    return stop if start < stop < end else end


@kernel
def back_to_state(request, engine, chunk):
    """The chunk, of which the time budget has left less, up to the last end of a block in it, if there is one."""
    size = engine.kv_groups.window_block_tokens
    end = (request.computed_tokens + chunk) // size * size
    return end - request.computed_tokens if end > request.computed_tokens else chunk
