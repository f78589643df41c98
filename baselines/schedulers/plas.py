"""Program-level least attained service: sessions with the fewest computed tokens go first (Autellix's PLAS)."""

import numpy as np

from servegym.baselines.schedulers import sarathi
from servegym.policy import Parameter, Parameters, Policy, register, score

P = Parameters(
    *sarathi.P,
    Parameter("quantum_tokens", 1024, "tokens computed for a session until its requests leave the top level; each "
              "level covers twice as many as the one above", 1, 2**24, "tokens", integer=True, log=True,
              source="[measured](../results/program-aware.md)"),
    Parameter("promote_after_s", 1500.0, "waiting time after which a prefill goes to the top level", 0.001, 1e6, "s",
              log=True, source="[measured](../results/program-aware.md); Autellix: by the ratio of waiting to service"),
)  # fmt: skip


@score(P, limits=sarathi.LIMITS, decodes="first")
def plas(request, engine, now_s, estimates, p):
    if now_s - request.arrival_s >= p.promote_after_s:
        return 0.0
    return np.floor(np.log2(1.0 + request.session_tokens / p.quantum_tokens))


register(
    Policy(
        "plas",
        "scheduler",
        "Decodes first, then prefill chunks of the sessions with the fewest computed tokens.",
        "Autellix (arXiv 2502.13965), PLAS; Sarathi-Serve",
        plas,
        parameters=P,
    )
)
