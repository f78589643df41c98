"""What a request's record says of its state (docs/simulation.md, "Words")."""

from servegym.simulator.compilation import kernel


@kernel
def left_of(request):
    """Tokens the request could compute next: its context less what it holds."""
    return request.prompt_tokens + request.emitted_tokens - request.computed_tokens


@kernel
def is_decoding(request):
    """Whether all that is left is the token it emitted last."""
    return request.emitted_tokens > 0 and left_of(request) == 1


@kernel
def next_deadline_s(request):
    """Deadline of the next token, absolute."""
    return request.first_deadline_s + request.emitted_tokens * request.token_interval_s
