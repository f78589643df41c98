"""Optional features of a run, each in its own file. loops.py says which each loop is compiled with.

Only hooks (*_hooks.py) and the features' own files ask for a feature, as in `if HAS_CACHE and engine.cache.on:`. The
flags are true here and in the whole loop. In the kernels of the plain loop they are false, so that what they guard is
not compiled.
"""

HAS_CLUSTER = True  # several engines, or what only fleets have: signals, transfers, scalers, incidents
HAS_CACHE = True  # prefix caches in KV memory, and prefix or block stores in host memory
HAS_DRAFTS = True  # speculative decoding
HAS_CLIENTS = True  # a front end; arrivals that depend on the end of other requests
HAS_TASKS = True  # preemptible batches
HAS_CORRECTION = True  # online correction of estimators
HAS_AHEAD = True  # asynchronous scheduling
HAS_LOCKSTEP = True  # data parallel ranks, which start and end iterations together
HAS_GROUPS = True  # KV cache groups
HAS_ADAPTERS = True  # LoRA adapters

FEATURES = (
    "HAS_CLUSTER", "HAS_CACHE", "HAS_DRAFTS", "HAS_CLIENTS", "HAS_TASKS", "HAS_CORRECTION", "HAS_AHEAD", "HAS_LOCKSTEP",
    "HAS_GROUPS", "HAS_ADAPTERS",
)  # fmt: skip
