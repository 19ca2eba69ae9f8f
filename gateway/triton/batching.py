"""A fault of Triton's dynamic batcher, and the configurations that it strikes.

With a queue policy Triton forms a batch only while it counts an instance as free, and with a queue delay it merges
batches that wait. Before 2.72 each merge took an instance off that count for good: under load a model then ran on ever
fewer of its instances, in the end on none, until it was loaded again (Triton's server issue 8870, mended by core pull
request 509).
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig

KEEPS_INSTANCES = (2, 72)
"""The first Triton (26.08) without the fault."""
LOSES_INSTANCES = "with a queue delay and a queue policy, Triton before 26.08 runs ever fewer instances under load"
REMEDY = "set max_queue_delay_microseconds to 0, or leave default_queue_policy out"


def loses_instances(config: ModelConfig) -> bool:
    """Whether a Triton with the fault loses this model's instances under load."""
    batching = config.dynamic_batching
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    instances = sum(max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group)
    return (
        instances > 1
        and batching.max_queue_delay_microseconds > 0
        and any(policy.default_timeout_microseconds or policy.max_queue_size for policy in policies)
    )
