"""The dashboard for operators of the service."""

from deploy.generate.panels import (
    CLASSIFYING,
    FULLNESS,
    IMAGE_FAULTS,
    Board,
    Panel,
    Query,
    Row,
    increase,
    per_request,
    quantile,
    rate,
    share,
    total,
)

_FAILED = rate("gateway_images_total", f'outcome=~"{IMAGE_FAULTS}"')
_HITS = rate("nv_cache_num_hits_per_model", by="model")

GLANCE = Row(
    "At a glance",
    (
        Panel(
            "Images",
            "Results, with or without an error.",
            (Query(rate("gateway_images_total"), "images"),),
            "ops",
            "stat",
            4,
        ),
        Panel(
            "Failed through the service",
            "Share of the images that failed because of a fault of the service.",
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
            "95 % of the requests are answered within this time.",
            (Query(quantile(0.95, "gateway_request_duration_seconds", 'stage="total"'), "p95"),),
            "s",
            "stat",
            4,
        ),
        Panel(
            "Fullness",
            "Images in flight and waiting, divided by the limit of images in flight. Above 1, images wait.",
            (Query(FULLNESS, "fullness"),),
            "percentunit",
            "stat",
            4,
        ),
        Panel(
            "Tritons ready",
            "Tritons that answered their last probe.",
            (Query("sum(min by (triton) (gateway_triton_ready{$sel}))", "ready"),),
            kind="stat",
            span=4,
        ),
        Panel(
            "Gateways",
            "Gateways that Prometheus reaches.",
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
            "From the first byte of a request to the last byte of its response.",
            tuple(
                Query(quantile(part, "gateway_request_duration_seconds", 'stage="total"'), f"p{part * 100:.0f}")
                for part in (0.5, 0.95, 0.99)
            ),
            "s",
        ),
        Panel(
            "Time of each stage, 95 %",
            "read: the client sends. prepare: the gateway decodes. wait: too many images are in flight. infer: Triton.",
            (Query(quantile(0.95, "gateway_request_duration_seconds", 'stage!="total"', "stage"), "{{stage}}"),),
            "s",
        ),
        Panel(
            "Received bytes and disconnected clients",
            "Bytes of request bodies; requests whose client disconnected.",
            (
                Query(rate("gateway_received_bytes_total"), "bytes/s"),
                Query(rate("gateway_client_disconnects_total"), "disconnected clients/s"),
            ),
            "Bps",
        ),
    ),
)
QUEUES = Row(
    "Load and limits",
    (
        Panel(
            "Fullness",
            "Images in flight and waiting as a share of the gateways' limits: above 1, images wait.",
            (Query(FULLNESS, "fullness"),),
            "percentunit",
        ),
        Panel(
            "Images in the gateways",
            "In flight: in Triton. Waiting: for a permit, until an image in flight is done.",
            (
                Query(total("gateway_images_in_flight"), "in flight"),
                Query(total("gateway_images_waiting"), "waiting"),
                Query(total("gateway_images_in_flight_limit"), "in flight, limit"),
            ),
        ),
        Panel(
            "Memory for uploads",
            "Used share; above 1, uploads are refused.",
            (
                Query(share(total("gateway_waiting_bytes"), total("gateway_waiting_limit_bytes")), "waiting"),
                Query(share(total("gateway_in_flight_bytes"), total("gateway_in_flight_limit_bytes")), "in flight"),
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
            "Streams",
            "Open streams of frames, and the limit.",
            (
                Query(total("gateway_streams"), "open"),
                Query(total("gateway_streams_limit"), "limit"),
            ),
        ),
        Panel(
            "Streams ended by the gateway",
            "idle: no frame came. displaced: for a new stream, at the limit. key_removed: the API key was removed.",
            (Query(rate("gateway_streams_stopped_total", by="reason"), "{{reason}}", quiet=True),),
            "ops",
        ),
        Panel(
            "Pauses of the gateways",
            "Longest pause of a gateway's event loop, in which it serves no request.",
            (Query("max by (instance) (gateway_event_loop_pause_seconds{$sel})", "{{instance}}"),),
            "s",
        ),
    ),
)
PREDICTION_LOG = Row(
    "Prediction log",
    (
        Panel(
            "Rows, by outcome",
            "written, or why they were dropped: queue_full, writer_lost, refused, shutdown, fault.",
            (Query(rate("gateway_prediction_log_rows_total", by="outcome"), "{{outcome}}", quiet=True),),
            "ops",
            stacked=True,
        ),
        Panel(
            "Queues of the writers",
            "Bytes of rows and images that wait for the writers; at log_predictions_queue_bytes, rows are dropped.",
            (Query(total("gateway_prediction_log_queue_bytes"), "waiting", quiet=True),),
            "bytes",
        ),
    ),
)
KEYS = Row(
    "API keys with quotas",
    (
        Panel(
            "Images by key",
            "Images answered, by the name of the API key; empty unless keys have quotas.",
            (Query(rate("gateway_key_images_total", by="key"), "{{key}}", quiet=True),),
            "ops",
            stacked=True,
        ),
        Panel(
            "Images in flight by key",
            "A key's share bounds them.",
            (Query(total("gateway_key_images_in_flight", "key"), "{{key}}", quiet=True),),
            stacked=True,
        ),
        Panel(
            "Refused by quota",
            "rate: 429, the rate is exceeded. forbidden: 403, a model or path that the quota excludes.",
            (Query(rate("gateway_key_refusals_total", by="key, reason"), "{{key}}: {{reason}}", quiet=True),),
            "ops",
        ),
        Panel(
            "Store of rates",
            "1 while the shared store answers every gateway, or none is set; 0 while one applies the rates by itself.",
            (Query("min(gateway_rate_store_up{$sel})", "answers", quiet=True),),
            maximum=1,
        ),
    ),
)
DEMAND = Row(
    "Models on demand",
    (
        Panel(
            "Images by state of their model",
            "loaded, not_loaded (it waits for a load), unloaded_meanwhile (another gateway has unloaded it since).",
            (Query(rate("gateway_model_lookups_total", by="outcome"), "{{outcome}}", quiet=True),),
            "ops",
            stacked=True,
        ),
        Panel(
            "Loads and evictions",
            "Loads by outcome, and models that were unloaded for others.",
            (
                Query(increase("gateway_model_loads_total", "outcome"), "{{outcome}}", quiet=True),
                Query(increase("gateway_model_evictions_total"), "evicted", quiet=True),
            ),
        ),
        Panel(
            "Cold start by model, 99 %",
            "From the request for a model that is not loaded to its first good probe.",
            (Query(quantile(0.99, "gateway_model_load_duration_seconds", by="model"), "{{model}}", quiet=True),),
            "s",
        ),
        Panel(
            "Memory of the loaded models",
            "Host memory at each Triton, as last measured.",
            (Query("max by (triton) (gateway_models_memory_bytes{$sel})", "{{triton}}", quiet=True),),
            "bytes",
        ),
    ),
)
TRITONS = Row(
    "Tritons",
    (
        Panel(
            "Readiness of each",
            "1 while the last probe, a real inference, succeeded there.",
            (Query("min by (triton) (gateway_triton_ready{$sel})", "{{triton}}"),),
            maximum=1,
        ),
        Panel(
            "Readiness of each model",
            "1 while at least one Triton answers for it. The names are Triton's: flowers.v2 is version 2 of flowers.",
            (Query("max by (model) (gateway_model_ready{$sel})", "{{model}}"),),
            maximum=1,
        ),
        Panel(
            "Reloads and retries",
            "Reloads of failing models by outcome, and repeated calls.",
            (
                Query(increase("gateway_healings_total", "outcome"), "{{outcome}}"),
                Query(increase("gateway_retries_total"), "retries"),
            ),
        ),
        Panel(
            "Faults that should not occur",
            "Decoder processes that died, quarantined images, errors of health checkers, failed DNS lookups.",
            (
                Query(increase("gateway_decoders_lost_total"), "decoders lost", quiet=True),
                Query(increase("gateway_images_quarantined_total"), "images quarantined"),
                Query(increase("gateway_watch_faults_total"), "errors of health checkers"),
                Query(increase("gateway_dns_failures_total"), "failed lookups"),
            ),
        ),
        Panel(
            "Decoding in the gateways",
            "Processor time of one image that the gateway decodes, such as a large one.",
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
            "Mean time in the model's queue. If it exceeds the computing time, add instances or Tritons.",
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
            "Requests waiting in Triton",
            "By step: requests to an ensemble are not counted.",
            (Query(total("nv_inference_pending_request_count", "model"), "{{model}}"),),
        ),
        Panel(
            "GPU utilisation",
            "Share of the time in which a kernel was running.",
            (Query("avg by (gpu_uuid) (nv_gpu_utilization{$sel})", "{{gpu_uuid}}", quiet=True),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "GPU memory",
            "Used share.",
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
            "Used share, by all processes of the machine.",
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
    "Readiness, latency, load and faults of the service.",
    (GLANCE, REQUESTS, QUEUES, PREDICTION_LOG, KEYS, DEMAND, TRITONS),
)
