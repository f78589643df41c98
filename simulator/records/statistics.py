"""Running statistics of an engine by client and by application, which a real scheduler could count too.

They are kept only for a policy that declares them in its `StateFields`; otherwise the tables are empty.
"""

from servegym.simulator.compilation.kernels import kernel

UNKNOWN_TOKENS = 200.0  # expected output length before any request has finished, as in expected-gain


@kernel
def counts(tables):
    """Return whether any statistics are kept."""
    return tables.by_client.shape[1] > 0 or tables.by_application.shape[1] > 0


@kernel
def count_queued(tables, e, request):
    """Count a request that joins the queue of engine e."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].queued += 1
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].queued += 1


@kernel
def count_departed(tables, e, request):
    """Count a request that leaves the queue of engine e unfinished."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].queued -= 1
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].queued -= 1


@kernel
def count_admitted(tables, e, request):
    """Count the prompt of a request at its first admission at engine e."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].admitted_prompt_tokens += request.prompt_tokens
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].admitted_prompt_tokens += request.prompt_tokens


@kernel
def count_emitted(tables, e, request):
    """Count a token that a request has emitted at engine e."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].num_output_tokens += 1
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].num_output_tokens += 1


@kernel
def count_finished(tables, e, request):
    """Count a request that has finished at engine e, and its output length."""
    if tables.by_client.shape[1] > 0:
        add_length(tables.by_client[e, request.client], float(request.num_output_tokens))
    if tables.by_application.shape[1] > 0:
        add_length(tables.by_application[e, request.application], float(request.num_output_tokens))


@kernel
def add_length(group, output_tokens):
    """Update mean and squared deviations with the output length of a finished request (Welford)."""
    group.queued -= 1
    group.finished += 1
    deviation = output_tokens - group.mean_output_tokens
    group.mean_output_tokens += deviation / group.finished
    group.squared_deviations += deviation * (output_tokens - group.mean_output_tokens)


@kernel
def mean_length(group, unknown):
    """Return the mean output length of a group's finished requests, in tokens; `unknown` if none has finished."""
    return group.mean_output_tokens if group.finished > 0 else unknown


@kernel
def clear_state(tables, r):
    """Set the policy's numbers of request r to 0, as those written at another engine have no meaning here."""
    if tables.requests.shape[0] > 0:
        for field in range(tables.requests.shape[1]):
            tables.requests[r, field] = 0.0
