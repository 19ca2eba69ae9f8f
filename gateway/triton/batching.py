"""A queue policy of Triton's dynamic batcher, and what it costs.

Without a policy, Triton forms batches while its instances are busy, and an instance that finishes takes one at once.
With a policy (a bound, a timeout, or priorities) it forms a batch only while an instance is free, and the batcher is
not notified when one becomes free: it checks again on the next request, or after half a second
(`SupportPrefetching` and `WaitForPayloadSlotAvailable` in the core's dynamic_batch_scheduler.cc). Before 2.72 a queue
delay beside the policy is worse: each merge of two waiting batches counts an instance less, until the model is loaded
again (Triton's server issue 8870, fixed by core pull request 509).
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig

HOLDS_BACK = "with a queue policy, Triton can delay requests by half a second while an instance is free"
REMEDY = "remove default_queue_policy; the gateway limits the number of waiting requests and their time"


def has_queue_policy(config: ModelConfig) -> bool:
    """Whether a model's dynamic batcher has a policy that prevents it from forming batches ahead."""
    batching, policy = config.dynamic_batching, config.dynamic_batching.default_queue_policy
    return bool(
        batching.priority_levels
        or policy.default_timeout_microseconds
        or policy.allow_timeout_override
        or policy.max_queue_size
    )
