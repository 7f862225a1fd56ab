"""Names of our own fields in vLLM's `SamplingParams.extra_args`. Only the server sets these; a client cannot."""

CREDIT = "headrace_credit"
"""Position up to which the answer may be generated; 0 or missing for no limit."""

GENERATED = "headrace_generated"
"""How many of the last prompt tokens are the answer's own, generated before."""

SEED = "headrace_seed"
"""Draw tokens by `engine_core.sampler` under this seed."""

CHECKPOINT = "headrace_checkpoint"
"""[tenant id, stream id, whether somebody served it before]: whose KV checkpoint the request has."""

TOP_K = "headrace_top_k"
TOP_P = "headrace_top_p"
"""In place of vLLM's own, whose sort of the whole vocabulary the sampler does not need."""

BEHIND = 1
"""vLLM's priority, no field of ours: of what nobody waits for. Such a request takes no KV cache from a held one."""
