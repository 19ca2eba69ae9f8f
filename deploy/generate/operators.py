"""The dashboard for operators of the service."""

from deploy.generate.panels import (
    CLASSIFYING,
    FULLNESS,
    IMAGE_FAULTS,
    Board,
    Panel,
    Query,
    Row,
    per_request,
    quantile,
    rate,
    share,
)

_FAILED = rate("gateway_images_total", f'outcome=~"{IMAGE_FAULTS}"')
_HITS = rate("nv_cache_num_hits_per_model", by="model")

GLANCE = Row(
    "At a glance",
    (
        Panel("Images", "Answered, well or not.", (Query(rate("gateway_images_total"), "images"),), "ops", "stat", 4),
        Panel(
            "Failed through the service",
            "Share of the images without an answer that are not to blame themselves.",
            (
                Query(
                    share(f"({_FAILED} or vector(0))", rate("gateway_images_total")),
                    "failed",
                ),
            ),
            "percentunit",
            "stat",
            4,
        ),
        Panel(
            "Request, 95 %",
            "Nineteen of twenty requests are answered within this time.",
            (Query(quantile(0.95, "gateway_request_duration_seconds", 'stage="total"'), "p95"),),
            "s",
            "stat",
            4,
        ),
        Panel(
            "Fullness",
            "Images in flight and waiting, over those that may be in flight. Above 1 images wait.",
            (Query(FULLNESS, "fullness"),),
            "percentunit",
            "stat",
            4,
        ),
        Panel(
            "Tritons ready",
            "Those that have lately classified an image.",
            (Query("sum(min by (triton) (gateway_triton_ready{$sel}))", "ready"),),
            kind="stat",
            span=4,
        ),
        Panel(
            "Gateways",
            "Those that Prometheus reaches.",
            (Query("count(gateway_build_info{$sel})", "gateways"),),
            kind="stat",
            span=4,
        ),
    ),
)
REQUESTS = Row(
    "Requests and images",
    (
        Panel(
            "Images by outcome",
            "ok, or the code of the image's error.",
            (Query(rate("gateway_images_total", by="outcome"), "{{outcome}}"),),
            "ops",
            stacked=True,
        ),
        Panel(
            "Requests by status",
            "499: the client left before the answer.",
            (Query(rate("gateway_requests_total", CLASSIFYING, "status"), "{{status}}"),),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Refused and failed requests by code",
            "The problem's code, as in the answer and in the log.",
            (Query(rate("gateway_requests_total", 'code!=""', "code"), "{{code}}", quiet=True),),
            "reqps",
        ),
        Panel(
            "Time of a request",
            "From its first byte to the last of its answer.",
            tuple(
                Query(quantile(part, "gateway_request_duration_seconds", 'stage="total"'), f"p{part * 100:.0f}")
                for part in (0.5, 0.95, 0.99)
            ),
            "s",
        ),
        Panel(
            "Where the time goes, 95 %",
            "read: the client sends. prepare: the gateway decodes. wait: too much is in flight. infer: Triton.",
            (Query(quantile(0.95, "gateway_request_duration_seconds", 'stage!="total"', "stage"), "{{stage}}"),),
            "s",
        ),
        Panel(
            "Bodies, and clients that leave",
            "Bytes that arrive; requests whose client went away.",
            (
                Query(rate("gateway_received_bytes_total"), "bytes/s"),
                Query(rate("gateway_client_disconnects_total"), "clients gone/s"),
            ),
            "Bps",
        ),
    ),
)
QUEUES = Row(
    "How full",
    (
        Panel("Fullness", "What Tritons are scaled by.", (Query(FULLNESS, "fullness"),), "percentunit"),
        Panel(
            "Images in the gateways",
            "In flight: in Triton. Waiting: until one in flight is done.",
            (
                Query("sum(gateway_images_in_flight{$sel})", "in flight"),
                Query("sum(gateway_images_waiting{$sel})", "waiting"),
                Query("sum(gateway_images_in_flight_limit{$sel})", "in flight, limit"),
            ),
        ),
        Panel(
            "Memory for uploads",
            "Share that is taken; beyond 1, uploads are refused.",
            (
                Query("sum(gateway_waiting_bytes{$sel}) / sum(gateway_waiting_limit_bytes{$sel})", "waiting"),
                Query("sum(gateway_in_flight_bytes{$sel}) / sum(gateway_in_flight_limit_bytes{$sel})", "in flight"),
            ),
            "percentunit",
        ),
        Panel(
            "Calls to Triton",
            "Time of one call with a batch, retries included.",
            tuple(
                Query(quantile(part, "gateway_triton_call_duration_seconds"), f"p{part * 100:.0f}")
                for part in (0.5, 0.95, 0.99)
            ),
            "s",
        ),
        Panel(
            "Batch sizes",
            "Images in one call, and in one run of each of Triton's models.",
            (
                Query(f"{rate('gateway_batch_images_sum')} / {rate('gateway_batch_images_count')}", "gateway's calls"),
                Query(
                    f"{rate('nv_inference_count', by='model')} / {rate('nv_inference_exec_count', by='model')}",
                    "{{model}}",
                ),
            ),
        ),
        Panel(
            "Pauses of the gateways",
            "Longest time for which a gateway's event loop served nobody.",
            (Query("max by (instance) (gateway_event_loop_pause_seconds{$sel})", "{{instance}}"),),
            "s",
        ),
    ),
)
TRITONS = Row(
    "Tritons",
    (
        Panel(
            "Readiness of each",
            "1 while a real inference has lately succeeded there.",
            (Query("min by (triton) (gateway_triton_ready{$sel})", "{{triton}}"),),
            maximum=1,
        ),
        Panel(
            "Readiness of each model",
            "1 while some Triton answers for it. Ensembles by Triton's name: flowers.v2 is a version.",
            (Query("max by (model) (gateway_model_ready{$sel})", "{{model}}"),),
            maximum=1,
        ),
        Panel(
            "Healings and retries",
            "Models that were reloaded, and calls that were made once more.",
            (
                Query("sum by (outcome) (increase(gateway_healings_total{$sel}[$window]))", "{{outcome}}"),
                Query("sum(increase(gateway_retries_total{$sel}[$window]))", "retries"),
            ),
        ),
        Panel(
            "What should never happen",
            "Decoders that died, images that end processes, watches with errors, names that are not found.",
            (
                Query("sum(increase(gateway_decoders_lost_total{$sel}[$window]))", "decoders lost", quiet=True),
                Query("sum(increase(gateway_images_quarantined_total{$sel}[$window]))", "images quarantined"),
                Query("sum(increase(gateway_watch_faults_total{$sel}[$window]))", "faults of watches"),
                Query("sum(increase(gateway_dns_failures_total{$sel}[$window]))", "failed lookups"),
            ),
        ),
        Panel(
            "Decoding in the gateways",
            "Processor time of one image that the gateway decodes itself, as it does with large ones.",
            (Query(quantile(0.95, "gateway_decode_cpu_seconds"), "p95", quiet=True),),
            "s",
        ),
        Panel(
            "Cache hits",
            "Share of the calls that Triton answers from its response cache.",
            (
                Query(
                    share(_HITS, f"({_HITS} + {rate('nv_cache_num_misses_per_model', by='model')})"),
                    "{{model}}",
                ),
            ),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Waiting in Triton, by model",
            "Mean time in the model's queue. Long here and short beside it: more instances, or more Tritons.",
            (Query(per_request("nv_inference_queue_duration_us"), "{{model}}"),),
            "s",
        ),
        Panel(
            "Computing in Triton, by model",
            "Mean time in the model itself.",
            (Query(per_request("nv_inference_compute_infer_duration_us"), "{{model}}"),),
            "s",
        ),
        Panel(
            "Requests that wait in Triton",
            "An ensemble's own never count: look at its steps.",
            (Query("sum by (model) (nv_inference_pending_request_count{$sel})", "{{model}}"),),
        ),
        Panel(
            "GPUs at work",
            "Share of the time in which a kernel ran.",
            (Query("avg by (gpu_uuid) (nv_gpu_utilization{$sel})", "{{gpu_uuid}}", quiet=True),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Memory of the GPUs",
            "Share that is taken.",
            (
                Query(
                    share(
                        "max by (gpu_uuid) (nv_gpu_memory_used_bytes{$sel})",
                        "max by (gpu_uuid) (nv_gpu_memory_total_bytes{$sel})",
                    ),
                    "{{gpu_uuid}}",
                    quiet=True,
                ),
            ),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Processors and memory of Triton's machines",
            "Share that is taken, by everything there.",
            (
                Query("avg by (instance) (nv_cpu_utilization{$sel})", "processors {{instance}}"),
                Query(
                    share(
                        "max by (instance) (nv_cpu_memory_used_bytes{$sel})",
                        "max by (instance) (nv_cpu_memory_total_bytes{$sel})",
                    ),
                    "memory {{instance}}",
                ),
            ),
            "percentunit",
        ),
    ),
)
OPERATORS = Board(
    "operators",
    "Image gateway: operation",
    "Is it up, is it fast, how full is it, and what is slow.",
    (GLANCE, REQUESTS, QUEUES, TRITONS),
)
