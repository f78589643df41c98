"""Running statistics of an engine by client and by application: what a real scheduler could have counted itself.

They are kept only for a policy that reads them (its `StateFields`): the table of any other is empty.
"""

from servegym.simulator.compilation.kernels import kernel

UNKNOWN_TOKENS = 200.0  # expected of an answer before any has finished, as expected-gain has it


@kernel
def counts(tables):
    """Whether there is anything to count."""
    return tables.by_client.shape[1] > 0 or tables.by_application.shape[1] > 0


@kernel
def count_queued(tables, e, request):
    """The request joins the queue of engine e."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].queued += 1
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].queued += 1


@kernel
def count_departed(tables, e, request):
    """The request leaves the queue of engine e without having finished."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].queued -= 1
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].queued -= 1


@kernel
def count_admitted(tables, e, request):
    """The request is admitted to engine e for the first time."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].admitted_prompt_tokens += request.prompt_tokens
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].admitted_prompt_tokens += request.prompt_tokens


@kernel
def count_emitted(tables, e, request):
    """The request has emitted a token on engine e."""
    if tables.by_client.shape[1] > 0:
        tables.by_client[e, request.client].num_output_tokens += 1
    if tables.by_application.shape[1] > 0:
        tables.by_application[e, request.application].num_output_tokens += 1


@kernel
def count_finished(tables, e, request):
    """The request has finished on engine e."""
    if tables.by_client.shape[1] > 0:
        add_length(tables.by_client[e, request.client], float(request.num_output_tokens))
    if tables.by_application.shape[1] > 0:
        add_length(tables.by_application[e, request.application], float(request.num_output_tokens))


@kernel
def add_length(group, output_tokens):
    """Take the length of a finished request into the mean and the squared deviations (Welford's update)."""
    group.queued -= 1
    group.finished += 1
    deviation = output_tokens - group.mean_output_tokens
    group.mean_output_tokens += deviation / group.finished
    group.squared_deviations += deviation * (output_tokens - group.mean_output_tokens)


@kernel
def mean_length(group, unknown):
    """Mean length of the answers of a group that have finished, tokens; `unknown` where none has."""
    return group.mean_output_tokens if group.finished > 0 else unknown


@kernel
def clear_state(tables, r):
    """What another engine's scheduler has noted of request r means nothing here."""
    if tables.requests.shape[0] > 0:
        for field in range(tables.requests.shape[1]):
            tables.requests[r, field] = 0.0
