"""What an estimator asks of a form, made from the form's `core_s`: the time of one request, and of a whole queue."""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.requests import cached_of, is_decoding, left_of
from servegym.simulator.records.signatures import queue_latency, request_latency


@kernel
def core_s(tokens, cached, decoding, coefficients):
    """The form's own stands here (LatencyForm.core_s)."""
    return 0.0


@request_latency
def request_s(tokens, cached, decoding, coefficients):
    return core_s(tokens, cached, decoding, coefficients)


@queue_latency
def exec_s(requests, queue, coefficients, ranks):
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        ranks[position].exec_s = core_s(left_of(request), cached_of(request), is_decoding(request), coefficients)
