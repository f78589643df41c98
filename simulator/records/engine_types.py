"""Records of an engine: one model instance, with what each feature keeps of it."""

from servegym.simulator.records import record

ROLES = ("both", "prefill", "decode")
ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE = range(3)

# KV on its way from and to an engine.
TRANSFERS = record(
    [
        ("leaving", "i8"),  # requests that have been prefilled here and whose KV has yet to arrive elsewhere
        ("leaving_blocks", "i8"),  # blocks they hold here
        ("coming_blocks", "i8"),  # blocks taken for KV that is on its way here
        ("receiving", "i8"),  # the request whose KV is on its way here; -1: none
    ]
)

# How the batches of an engine can be suspended, and what of that is under way.
PREEMPTION = record(
    [
        ("owed_s", "f8"),  # moving time of attempts that came to nothing but a resumed task: of the next batch
        ("operators", "i8"),  # of a layer
        ("layers", "i8"),
        ("check_s", "f8"),  # what a boundary costs at which a batch can be suspended
        ("jitter_s", "f8"),  # most that a boundary is late
        ("suspending", "i8"),  # 1: a round has decided to suspend the running task at its next boundary
        ("resuming", "i8"),  # 1: a task has just been suspended
    ]
)

# How an engine drafts tokens of decodes; see speculation.py.
ENGINE_SPECULATION = record(
    [
        ("k", "i8"),  # most drafts of a request; 0: none has any
        ("free", "i8"),  # 1: they take no time and no tokens of budgets
        ("seed", "i8"),  # of which are accepted
    ]
)

# What online correction of its estimator has come to at an engine.
ENGINE_CORRECTION = record(
    [
        ("batch_scale", "f8"),  # what the fit was multiplied by for batch_estimate_s
        ("beta", "f8"),
        ("window_ratios", "f8"),  # sum of real / fitted over the iterations of the window so far
        ("window_length", "i8"),
    ]
)

# Prefix caching of an engine: its free blocks, and the request without memory that the packer considers.
ENGINE_CACHE = record(
    [
        ("on", "i8"),  # 0: it caches none
        ("first_free", "i8"),  # ends of the queue of free blocks; -1: none
        ("last_free", "i8"),
        ("considered", "i8"),  # the request; -1: none
        ("found_blocks", "i8"),  # what it finds
        ("shared_blocks", "i8"),  # of these, held by others
        ("stored_blocks", "i8"),  # what it would load of the store of blocks behind them
        ("offloaded_tokens", "i8"),  # what it has kept; while it is considered its own field is what would be loaded
        ("publishes", "i8"),  # 1: it tells routers which blocks it has; see kv_events.py
        ("first_changed", "i8"),  # block whose name has changed since it told them; -1: none
    ]
)

# Host memory for blocks that the KV memory has overwritten, in named blocks of its own; see block_stores.py.
BLOCK_STORE = record(
    [
        ("total_blocks", "i8"),  # 0: there is none
        ("free_blocks", "i8"),  # all of them: no request holds any
        ("cache", ENGINE_CACHE),  # of this the queue, the block used least recently first
    ]
)

# How far into its queue the packer came when it formed the engine's last batch (windows.py).
VISITS = record(
    [
        ("previous_length", "i8"),  # greater than any place that it gave; 0: it has given none
        ("bound_tier", "i8"),  # the rank up to which the first window of the next batch goes
        ("bound_key", "f8"),
    ]
)

# The batch that an engine has formed while one runs; see ahead.py.
ENGINE_AHEAD = record(
    [
        ("on", "i8"),  # 0: it forms a batch when it is idle
        ("length", "i8"),  # requests in the batch; 0: there is none
        ("forming", "i8"),  # 1: it is being formed, and a batch runs
        ("model_s", "f8"),  # what the device model says it takes
        ("estimate_s", "f8"),  # what the estimator says
        ("scale", "f8"),  # what the fit was multiplied by for that
    ]
)

# The engines with which it starts and ends iterations; see lockstep.py.
ENGINE_LOCKSTEP = record(
    [
        ("first", "i8"),  # engine of the group
        ("ranks", "i8"),  # engines in it, this one included; 1: it waits for none
    ]
)

# The groups of layers that keep KV or states, by kind: how many, and what they keep; see kv_groups.py.
ENGINE_KV_GROUPS = record(
    [
        ("on", "i8"),  # groups in all; 0: all layers keep all tokens, and a request has blocks of block_tokens
        ("full", "i8"),  # groups that keep all tokens
        ("full_block_tokens", "i8"),  # tokens of a block of theirs
        ("windows", "i8"),  # groups that keep the last tokens
        ("window_block_tokens", "i8"),
        ("window", "i8"),  # tokens that they keep
        ("local", "i8"),  # 1: windows begin at multiples of that
        ("states", "i8"),  # groups that keep a state, in one block
    ]
)

# LoRA adapters of an engine; see features/adapters.py.
ENGINE_ADAPTERS = record(
    [
        ("max_loras", "i8"),  # in a batch, and in device memory; 0: it has none
        ("max_cpu_loras", "i8"),  # in host memory, those in device memory among them
        ("load_s", "f8"),  # of one that is not in host memory
        ("activate_s", "f8"),  # of one that is in host memory and not in device memory
        ("in_host", "i8"),
        ("in_device", "i8"),
        ("uses", "i8"),  # of adapters so far
        ("attempts", "i8"),  # at forming batches so far
        ("in_batch", "i8"),  # different ones in the batch being formed
        ("loads", "i8"),
        ("activations", "i8"),
    ]
)

# An adapter at an engine.
ADAPTER = record(
    [
        ("host_use", "i8"),  # number of its last use in host memory; 0: it is not there
        ("device_use", "i8"),  # the same of device memory
        ("attempt", "i8"),  # at which `requests` have been counted
        ("requests", "i8"),  # in the batch being formed
    ]
)

# Sums over the run of what an engine did; of no use to a policy.
TOTALS = record(
    [
        ("evictions", "i8"),
        ("scheduled_before", "i8"),  # scheduled_tokens when the last token came out, all was taken back, or KV came
        ("num_output_tokens", "i8"),
        ("drafted_tokens", "i8"),  # in iterations that have ended
        ("accepted_tokens", "i8"),
        ("saved_tokens", "i8"),  # moved to host memory so far, and back
        ("loaded_tokens", "i8"),
        ("suspensions", "i8"),  # rounds that ended in a suspension
        ("blocking_s", "f8"),  # sum of the times from a round to the boundary at which it suspended a task
        ("longest_blocking_s", "f8"),
        ("admitted_tokens", "i8"),  # contexts of requests at their first admission since they were sent here
        ("cached_tokens", "i8"),  # of these, found in a prefix cache or store
        ("regained_tokens", "i8"),  # found at later admissions
        ("overwritten_blocks", "i8"),  # blocks that had a name when they were taken
        ("failures", "i8"),
        ("recalled", "i8"),  # requests taken back
        ("role_changes", "i8"),
        ("lost_tokens", "i8"),  # tokens whose KV they lost
        ("service_s", "f8"),  # time in service up to `serving_since_s`, or to now if it is nan
        ("serving_since_s", "f8"),
        ("block_seconds", "f8"),  # integral of blocks in use over time
        ("blocks_counted_s", "f8"),  # time up to which it is integrated
        ("peak_blocks", "i8"),
    ]
)

# An engine: one model instance. Nothing here tells how long its running iteration will take.
ENGINE = record(
    [
        ("index", "i8"),
        ("pool", "i8"),  # index of its pool
        ("role", "i8"),  # ROLE_BOTH, ROLE_PREFILL or ROLE_DECODE
        ("tier", "i8"),  # -1: the common pool
        ("up", "i8"),  # 0: it has failed
        ("closed", "i8"),  # 1: it is sent no requests
        ("drained", "i8"),  # 1: closed until it returns
        ("off", "i8"),  # 1: it is off, or loading until `ready_s`
        ("startup_s", "f8"),  # what that takes; nan: it is never off
        ("ready_s", "f8"),  # inf: it is not loading
        ("next_role", "i8"),  # which it is to have when it has nothing left; `role`: it is not to change
        ("role_change_s", "f8"),  # what that takes; nan: its role is fixed
        ("role_ready_s", "f8"),  # when it takes requests again; inf: not before it has nothing left; 0: it does
        ("block_tokens", "i8"),  # tokens in a KV block; with kv_groups, what policies are to count with
        ("total_blocks", "i8"),
        ("free_blocks", "i8"),
        ("watermark_blocks", "i8"),  # kept free when a request is admitted beside others
        ("running", "i8"),  # requests that hold KV blocks, those on their way from or to here included
        ("queue_length", "i8"),  # requests here, waiting and running
        ("batch_length", "i8"),  # requests in the running iteration; 0: idle
        ("last_batch_length", "i8"),  # requests in the last iteration that started
        ("iterations", "i8"),
        ("scheduled_tokens", "i8"),
        ("decode_tokens", "i8"),  # in a cluster: context of the requests here that have emitted a token
        ("host_blocks", "i8"),  # host memory for KV, in blocks; 0: none
        ("free_host_blocks", "i8"),
        ("save_s_per_token", "f8"),
        ("load_s_per_token", "f8"),
        ("moving_s", "f8"),  # time the running iteration (or the one being formed) spends on moving KV
        ("running_task", "i8"),  # index of the running iteration among its tasks, if that is preemptible; -1: it is not
        ("suspended", "i8"),  # tasks that are suspended
        ("rounds", "i8"),  # times the scheduler was asked, but for those straight after a suspension
        ("store_sets", "i8"),  # of its prefix store; 0: it has none, or keeps blocks there (block_store)
        ("store_uses", "i8"),  # of chunks there so far
        ("batch_start_s", "f8"),
        ("batch_estimate_s", "f8"),  # what the estimator said the running iteration takes, moving included
        ("estimate_scale", "f8"),  # online correction: what the estimator's fit is multiplied by
        ("busy_s", "f8"),
        # The simulator's, by what they are about.
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

# Limits of an engine, which hold whatever its scheduler says; NO_LIMIT: there is none.
ENGINE_LIMITS = record([("max_num_batched_tokens", "i8"), ("max_num_seqs", "i8")])

# Running statistics of an engine's requests of one client, or of one application.
GROUP = record(
    [
        ("queued", "i8"),  # requests here now
        ("admitted_prompt_tokens", "i8"),  # prompts of the requests admitted, each counted once
        ("num_output_tokens", "i8"),
        ("finished", "i8"),
        ("mean_output_tokens", "f8"),  # of the finished ones
        ("squared_deviations", "f8"),  # sum of (output tokens - mean)^2 over the finished ones
    ]
)
