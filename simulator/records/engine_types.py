"""Records of an engine, with a record for each feature that keeps something per engine."""

from servegym.simulator.records import record

ROLES = ("both", "prefill", "decode")
ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE = range(3)

# KV transfers from and to an engine.
TRANSFERS = record(
    [
        ("leaving", "i8"),  # requests prefilled here whose KV has not arrived elsewhere yet
        ("leaving_blocks", "i8"),  # their blocks here
        ("coming_blocks", "i8"),  # blocks reserved for KV that is being sent here
        ("receiving", "i8"),  # the request whose KV is being sent here; -1: none
    ]
)

# How the batches of an engine can be suspended.
PREEMPTION = record(
    [
        ("owed_s", "f8"),  # KV moving time of attempts that ended in a resumed batch; added to the next batch
        ("operators", "i8"),  # in a layer
        ("layers", "i8"),
        ("check_s", "f8"),  # time of the check at a boundary where a batch can be suspended
        ("jitter_s", "f8"),  # most by which a boundary is late
        ("suspending", "i8"),  # 1: the running batch will be suspended at its next boundary
        ("resuming", "i8"),  # 1: a batch has just been suspended
    ]
)

# Speculative decoding at an engine; see features/speculation.py.
ENGINE_SPECULATION = record(
    [
        ("k", "i8"),  # most draft tokens of a decode; 0: no speculation
        ("free", "i8"),  # 1: drafts take no time and count in no token budget
        ("seed", "i8"),  # seed of which drafts are accepted
    ]
)

# State of the online correction of an engine's estimator.
ENGINE_CORRECTION = record(
    [
        ("batch_scale", "f8"),  # scale of the fit when batch_estimate_s was made
        ("beta", "f8"),
        ("window_ratios", "f8"),  # sum of real / fitted over the iterations of the window so far
        ("window_length", "i8"),
    ]
)

# Prefix cache of an engine: its free blocks, and the latest prefix look-up.
ENGINE_CACHE = record(
    [
        ("on", "i8"),  # 0: it caches no prefixes
        ("first_free", "i8"),  # front and end of the queue of free blocks; -1: it is empty
        ("last_free", "i8"),
        ("considered", "i8"),  # waiting request that the packer has looked up; -1: none
        ("found_blocks", "i8"),  # cached blocks of its prefix
        ("shared_blocks", "i8"),  # those of them that running requests have
        ("stored_blocks", "i8"),  # blocks after them that it would load from the block store
        ("offloaded_tokens", "i8"),  # REQUEST.offloaded_tokens before the look-up set it to what it would load
        ("publishes", "i8"),  # 1: it publishes KV events; see kv_events.py
        ("first_changed", "i8"),  # block whose name has changed since the last KV events; -1: none
    ]
)

# Block store: host memory for named blocks that were overwritten in KV memory; see block_stores.py.
BLOCK_STORE = record(
    [
        ("total_blocks", "i8"),  # 0: the engine has none
        ("free_blocks", "i8"),  # equal to total_blocks: no request holds a stored block
        ("cache", ENGINE_CACHE),  # only its queue is used: least recently used block first
    ]
)

# How much of its queue the packer visited for the engine's last batch (windows.py).
VISITS = record(
    [
        ("previous_length", "i8"),  # places in previous_order are below it; 0: none was given
        ("bound_tier", "i8"),  # (tier, key) up to which the first window of the next batch goes
        ("bound_key", "f8"),
    ]
)

# Asynchronous scheduling: the batch formed while another runs; see features/ahead.py.
ENGINE_AHEAD = record(
    [
        ("on", "i8"),  # 0: the engine forms batches only when it is idle
        ("length", "i8"),  # requests in the batch formed ahead; 0: there is none
        ("forming", "i8"),  # 1: it is being formed
        ("model_s", "f8"),  # its time by the device model
        ("estimate_s", "f8"),  # its time by the estimator
        ("scale", "f8"),  # correction of that estimate
        ("loaded_s", "f8"),  # when its LoRA adapters are in host memory, or those of the batch before it
        ("activate_s", "f8"),  # time to copy them to device memory, once nothing runs
        ("waits_s", "f8"),  # time that the running iteration spends on both
    ]
)

# Engines that start and end iterations together (data parallel ranks); see features/lockstep.py.
ENGINE_LOCKSTEP = record(
    [
        ("first", "i8"),  # first engine of the group
        ("ranks", "i8"),  # engines in the group, this one included; 1: it waits for none
    ]
)

# KV cache groups of an engine, by kind; see memory/kv_groups.py.
ENGINE_KV_GROUPS = record(
    [
        ("on", "i8"),  # groups in all; 0: all layers keep all tokens, in blocks of block_tokens
        ("full", "i8"),  # groups that keep all tokens
        ("full_block_tokens", "i8"),  # tokens in a block of those groups
        ("windows", "i8"),  # groups that keep a window of the latest tokens
        ("window_block_tokens", "i8"),
        ("window", "i8"),  # tokens in a window
        ("local", "i8"),  # 1: windows begin at multiples of `window` (chunked local attention)
        ("states", "i8"),  # groups that keep a state in one block
    ]
)

# LoRA adapters of an engine; see features/adapters.py.
ENGINE_ADAPTERS = record(
    [
        ("max_loras", "i8"),  # adapters in a batch, and in device memory; 0: it serves none
        ("max_cpu_loras", "i8"),  # adapters in host memory, including those in device memory
        ("load_s", "f8"),  # time to load an adapter into host memory
        ("activate_s", "f8"),  # time to copy an adapter from host to device memory
        ("in_host", "i8"),  # adapters in host memory now
        ("in_device", "i8"),  # adapters in device memory now
        ("uses", "i8"),  # uses of adapters so far: the clock of least recently used
        ("attempts", "i8"),  # attempts to form a batch so far
        ("in_batch", "i8"),  # different adapters in the batch being formed
        ("loads", "i8"),
        ("activations", "i8"),
    ]
)

# An adapter at an engine.
ADAPTER = record(
    [
        ("host_use", "i8"),  # ENGINE_ADAPTERS.uses at its last use in host memory; 0: it is not there
        ("device_use", "i8"),  # the same of device memory
        ("attempt", "i8"),  # attempt in which `requests` was counted
        ("requests", "i8"),  # requests with it in the batch being formed
    ]
)

# Sums over the run of what an engine did, for results; policies do not read them.
TOTALS = record(
    [
        ("evictions", "i8"),
        ("scheduled_before", "i8"),  # scheduled_tokens at the last token, recall of all requests, or KV arrival
        ("num_output_tokens", "i8"),
        ("drafted_tokens", "i8"),  # drafts in iterations that have ended
        ("accepted_tokens", "i8"),
        ("saved_tokens", "i8"),  # moved to host memory
        ("loaded_tokens", "i8"),  # moved back from host memory
        ("suspensions", "i8"),  # times that a batch was suspended
        ("blocking_s", "f8"),  # sum of times from the decision to suspend a batch to its suspension
        ("longest_blocking_s", "f8"),
        ("admitted_tokens", "i8"),  # context tokens of requests at their first admission here
        ("cached_tokens", "i8"),  # those of them found in a prefix cache or store
        ("regained_tokens", "i8"),  # tokens found there at later admissions
        ("overwritten_blocks", "i8"),  # named blocks that were taken for other contents
        ("failures", "i8"),
        ("recalled", "i8"),  # requests taken back to the router
        ("role_changes", "i8"),
        ("lost_tokens", "i8"),  # tokens whose KV those requests lost
        ("service_s", "f8"),  # time in service before `serving_since_s`
        ("serving_since_s", "f8"),  # nan: it is not in service
        ("block_seconds", "f8"),  # integral of blocks in use over time
        ("blocks_counted_s", "f8"),  # time up to which block_seconds is integrated
        ("peak_blocks", "i8"),
    ]
)

# An engine as its scheduler sees it. The true duration of its running iteration is not among the fields.
ENGINE = record(
    [
        ("index", "i8"),
        ("pool", "i8"),  # index of its pool
        ("role", "i8"),  # ROLE_BOTH, ROLE_PREFILL or ROLE_DECODE
        ("tier", "i8"),  # -1: the common pool
        ("up", "i8"),  # 0: it has failed
        ("closed", "i8"),  # 1: no requests are sent to it
        ("drained", "i8"),  # 1: an incident has closed it until it returns
        ("off", "i8"),  # 1: it is off, or starting until `ready_s`
        ("startup_s", "f8"),  # start-up time; nan: it is never off
        ("ready_s", "f8"),  # end of its start-up; inf: it is not starting
        ("next_role", "i8"),  # role that it takes once it has no requests; equal to `role`: no change
        ("role_change_s", "f8"),  # time of a role change; nan: its role is fixed
        ("role_ready_s", "f8"),  # end of its role change; inf: it still has requests; 0: no change
        ("block_tokens", "i8"),  # tokens in a KV block; with KV cache groups, the number that policies count with
        ("total_blocks", "i8"),
        ("free_blocks", "i8"),
        ("watermark_blocks", "i8"),  # kept free when a request is admitted beside others
        ("running", "i8"),  # requests with KV blocks here, including those whose KV is being sent
        ("queue_length", "i8"),  # requests here, waiting and running
        ("batch_length", "i8"),  # requests in the running iteration; 0: idle
        ("last_batch_length", "i8"),  # requests in the last iteration that started
        ("iterations", "i8"),
        ("scheduled_tokens", "i8"),
        ("decode_tokens", "i8"),  # in a cluster: context of the requests here that have emitted a token
        ("host_blocks", "i8"),  # host memory for offloaded KV, in blocks; 0: none
        ("free_host_blocks", "i8"),
        ("save_s_per_token", "f8"),
        ("load_s_per_token", "f8"),
        ("moving_s", "f8"),  # KV moving time of the running iteration, or of the one being formed
        ("running_task", "i8"),  # index of the running batch in state.tasks; -1: it is not preemptible
        ("suspended", "i8"),  # suspended batches
        ("rounds", "i8"),  # times the scheduler was asked, except right after a suspension
        ("store_sets", "i8"),  # sets of its prefix store; 0: it has none, or a block store
        ("store_uses", "i8"),  # uses of chunks in its prefix store so far
        ("batch_start_s", "f8"),
        ("batch_estimate_s", "f8"),  # estimated time of the running iteration, KV moving included
        ("estimate_scale", "f8"),  # online correction: factor of the estimator's fit
        ("busy_s", "f8"),
        # State of the simulator's features.
        ("transfers", TRANSFERS),
        ("preemption", PREEMPTION),
        ("cache", ENGINE_CACHE),
        ("block_store", BLOCK_STORE),
        ("speculation", ENGINE_SPECULATION),
        ("correction", ENGINE_CORRECTION),
        ("visits", VISITS),
        ("ahead", ENGINE_AHEAD),
        ("totals", TOTALS),
        ("lockstep", ENGINE_LOCKSTEP),
        ("kv_groups", ENGINE_KV_GROUPS),
        ("adapters", ENGINE_ADAPTERS),
    ]
)

# Limits of an engine that its scheduler cannot exceed; NO_LIMIT: there is none.
ENGINE_LIMITS = record([("max_num_batched_tokens", "i8"), ("max_num_seqs", "i8")])

# Running statistics of the requests of a client, or of an application, at an engine.
GROUP = record(
    [
        ("queued", "i8"),  # requests in the engine's queue now
        ("admitted_prompt_tokens", "i8"),  # prompts of the requests admitted, each counted once
        ("num_output_tokens", "i8"),
        ("finished", "i8"),
        ("mean_output_tokens", "f8"),  # mean over finished requests
        ("squared_deviations", "f8"),  # sum of (output tokens - mean)^2 over finished requests
    ]
)
