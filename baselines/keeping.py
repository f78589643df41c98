"""How much of a victim's KV to save to host memory and how much to recompute (semantic scheduling, Eq. 3 to 6)."""

from servegym.baselines.remaining_time import decode_s, prefill_s
from servegym.policy import kernel

ACCOUNTINGS = ("decode", "prefill", "as-printed")
DECODE, PREFILL, AS_PRINTED = range(3)


@kernel
def tokens_to_keep(request, engine, accounting, move_s_per_token, estimator):
    """Return how many computed tokens are worth saving, if moving a token takes `move_s_per_token` (beta) in all.

    accounting: decode: the prompt by Eq. 3 with the inequality reversed, and the decoded tokens by the time of their
    decode steps, all or none; prefill: all by the time of one prefill, as engines recompute; as-printed: Eq. 3 and 6.
    """
    if engine.host_blocks == 0:
        return 0
    prompt = min(request.computed_tokens, request.prompt_tokens)
    decoded = request.computed_tokens - prompt
    if accounting == PREFILL:
        whole = prompt + decoded
        return whole if move_s_per_token * whole < prefill_s(whole, 0, estimator) else 0
    if accounting == AS_PRINTED:
        kept = prompt if prompt > 0 and move_s_per_token * prompt > prefill_s(prompt, 0, estimator) else 0
        return kept + decoded_as_printed(prompt, decoded, move_s_per_token, estimator)
    kept = prompt if move_s_per_token * prompt < prefill_s(prompt, 0, estimator) else 0
    if move_s_per_token < decode_s(prompt + (decoded + 1) / 2.0, estimator):
        kept += decoded
    return kept


@kernel
def decoded_as_printed(prompt, decoded, move_s_per_token, estimator):
    """Return Eq. 6: (beta - gamma_1 n - (gamma_1 + 2 gamma_2) / 2) / (2 gamma_1), from 0 to `decoded`."""
    if decoded == 0:
        return 0
    saved_s = move_s_per_token - decode_s(prompt + 0.5, estimator)
    slope = (decode_s(prompt + decoded, estimator) - decode_s(prompt, estimator)) / decoded
    if slope <= 0.0:
        return decoded if saved_s > 0.0 else 0
    return int(min(float(decoded), max(0.0, saved_s / (2.0 * slope))))
