"""What a run may have, and most have not: one file a feature. A loop is compiled with all or none (loops.py).

Hooks (*_hooks.py) ask `if HAS_CACHE and engine.cache.on:`, and so do the features' own files, nothing else. The names
are true here and in the whole loop; in the kernels of the plain loop they are false, and what they guard is neither
compiled nor asked about.
"""

HAS_CLUSTER = True  # engines beside the first, or what only happens to fleets: signals, transfers, scalers, incidents
HAS_CACHE = True  # engines that cache prefixes in their KV memory, or in stores in host memory
HAS_DRAFTS = True  # engines that speculate
HAS_CLIENTS = True  # a front end; requests that come when others have ended
HAS_TASKS = True  # batches that can be suspended
HAS_CORRECTION = True  # estimators that are corrected while they are used
HAS_AHEAD = True  # engines that form the next batch while one runs
HAS_LOCKSTEP = True  # engines that start and end iterations together
HAS_GROUPS = True  # engines whose layers keep different parts of a request
HAS_ADAPTERS = True  # engines that have LoRA adapters

FEATURES = (
    "HAS_CLUSTER", "HAS_CACHE", "HAS_DRAFTS", "HAS_CLIENTS", "HAS_TASKS", "HAS_CORRECTION", "HAS_AHEAD", "HAS_LOCKSTEP",
    "HAS_GROUPS", "HAS_ADAPTERS",
)  # fmt: skip
