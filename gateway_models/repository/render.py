"""Renders an entry's config.pbtxt files; the files in triton_models come from the same templates."""

from importlib.resources import files
from string import Template

from gateway.machine.capacity import CPU_PREFERRED, GPU_PREFERRED
from gateway.triton.contract import CLASSIFIER_INPUT, IMAGE_TYPES
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Format, Precision, Serving

WARMED_UP_TO = 32
"""Larger batches are not warmed up: 1,024 images would take a CPU minutes."""
TENSORRT_CACHE = "/var/cache/tensorrt"
"""The folder of engines. Our image for GPUs has it, and docker-compose.yml and the chart have a volume for it."""
WORKSPACE_BYTES = 2**30
_SERVED_EMBEDDING = (
    "The embedding of an image, from the layer that `gateway model add --embeddings` chose: what POST /embed returns."
)
_LAYER = "The input of the last linear layer: the embedding of an image."
_AFTER_STEP = """,
    {
      model_name: "%s"
      model_version: -1
      input_map { key: "SCORES" value: "SCORES" }%s
      output_map { key: "PREDICTION" value: "PREDICTION" }
    }"""
_STEP_FEATURES_MAP = """
      input_map { key: "FEATURES" value: "FEATURES" }"""
_FEATURES_MAP = """
      output_map { key: "output__1" value: "FEATURES" }"""
_KIND = {
    Format.TORCHSCRIPT: ('platform: "pytorch_libtorch"', "a TorchScript module"),
    Format.ONNX: ('platform: "onnxruntime_onnx"', "an ONNX graph"),
    Format.FUNCTION: ('backend: "python"', "a Python function"),
}
_PARAMETERS = {
    Format.TORCHSCRIPT: """\
# One core per instance on a CPU, so that instances do not compete for cores. A single instance may have more.
# Do not set INTER_OP_THREAD_COUNT: torch accepts it once per process, and before 25.11 libtorch's backend ends the
# whole Triton with the second model, or the first reload, that sets it.
parameters { key: "INTRA_OP_THREAD_COUNT" value: { string_value: "1" } }
# No autograd bookkeeping.
parameters { key: "INFERENCE_MODE" value: { string_value: "true" } }
""",
    Format.ONNX: """\
# One core per instance on a CPU, so that instances do not compete for cores. A single instance may have more.
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
parameters { key: "inter_op_thread_count" value: { string_value: "1" } }
""",
    Format.FUNCTION: "",
}


def render(entry: Entry, *, command: str = "add") -> dict[str, str]:
    """The text of config.pbtxt for each of the entry's folders; `command` of `gateway model` is named in a comment."""
    side = entry.spec.prepared.crop_size
    runner, kind = _KIND[entry.format]
    serving = entry.spec.serving
    shared = {
        **entry.spec.prepared.parameters(),
        "name": entry.name,
        "preprocessor": entry.preprocessor,
        "classifier": entry.classifier,
        "max_batch_size": serving.max_batch_size,
        "classes": entry.versions[entry.in_use].outcome.classes,
        "side": side,
        "cache": _bool(serving.cache),
        "model": entry.name,
        "multi_label": _bool(entry.spec.multi_label),
        "decode": serving.decode.value,
        "tensor": entry.tensor.value,
        "image_type": IMAGE_TYPES[entry.tensor.value],
        "runner": runner,
        "kind": kind,
        "filename": entry.format.filename,
        "command": command,
        "batching": _batching(serving.preferred, serving.queue_delay_us),
        "preprocessor_instances": f"{{ kind: KIND_CPU{_count(serving.preprocessor_instances)} }}",
        "preprocessor_preferred": ", ".join(str(size) for size in CPU_PREFERRED if size <= serving.max_batch_size),
        "classifier_instances": _instances(serving),
        "parameters": _PARAMETERS[entry.format] + _accelerators(entry),
        "stream": _parameter("sequence_model", serving.sequence_model),
        "warmup": _warmup(_warmed_up(entry), side, IMAGE_TYPES[entry.tensor.value]),
        "features_output": _tensor("FEATURES", _SERVED_EMBEDDING, entry.embedding_size, after=","),
        "network_features": _tensor("output__1", _LAYER, entry.embedding_size, before=","),
        "features_map": _FEATURES_MAP if entry.embedding_size else "",
    }
    texts = {
        entry.preprocessor: _template("preprocessor").substitute(shared),
        entry.classifier: _template("classifier").substitute(shared),
    }
    for name, version in entry.ensembles.items():
        outcome = entry.versions[version].outcome
        texts[name] = _template("ensemble").substitute(
            shared,
            name=name,
            version=version,
            precision=entry.versions[version].spec.computes_in.value,
            cpu_runtime=_parameter("cpu_runtime", outcome.cpu_runtime),
            # Here and not in the network's configuration: Triton loads all versions of a network again if that changes.
            memory=_parameter("process_memory", outcome.memory.text if outcome.memory else ""),
            rollout=_parameter("rollout", entry.rollout.text if name == entry.name and entry.rollout.since else ""),
            description=_parameter("description", entry.versions[version].spec.description),
            reference=_parameter("drift_reference", entry.versions[version].drift_reference),
            classes=entry.versions[version].classes,
            classifier_version=entry.network_of(version) if len(entry.versions) > 1 else -1,
            **_after(entry, version),
        )
    for version in entry.versions:
        if step := entry.step_after(version):
            texts[step] = _after_config(entry, version)
    return texts


def _after(entry: Entry, version: int) -> dict[str, str]:
    """The parts of an ensemble that depend on its post-processing step."""
    step = entry.versions[version].spec.after
    if step is None:
        return {"scores": "PREDICTION", "then": f"then {entry.classifier}", "after": "", "after_step": ""}
    name = entry.step_after(version)
    return {
        "scores": "SCORES",
        "then": f"{entry.classifier}, then {name}",
        "after": _parameter("after", step.described()),
        "after_step": _AFTER_STEP % (name, _STEP_FEATURES_MAP if step.takes_embeddings else ""),
    }


def _after_config(entry: Entry, version: int) -> str:
    """config.pbtxt of a version's post-processing step."""
    found = entry.versions[version]
    assert found.spec.after is not None
    size = found.outcome.embedding_size if found.spec.after.takes_embeddings else 0
    return _template("after").substitute(
        step=entry.step_after(version),
        model=entry.name,
        version=version,
        described=" ".join(found.spec.after.described().split()),
        max_batch_size=entry.spec.serving.max_batch_size,
        network_classes=found.outcome.classes,
        classes=found.classes,
        step_features=_tensor("FEATURES", "The embedding of each image.", size, before=","),
    )


def _template(name: str) -> Template:
    return Template((files("gateway_models.repository") / "templates" / f"{name}.pbtxt").read_text())


def _instances(serving: Serving) -> str:
    if not serving.gpus:
        return f"{{ kind: KIND_AUTO{_count(serving.instances)} }}"
    return f"{{ kind: KIND_GPU{_count(serving.instances)} gpus: [ {', '.join(map(str, serving.gpus))} ] }}"


def _count(count: int | None) -> str:
    return "" if count is None else f" count: {count}"


def _batching(preferred: tuple[int, ...] | None, queue_delay_us: int | None) -> str:
    """The lines of dynamic_batching that were chosen; the others are completed where Triton is started."""
    lines = [] if preferred is None else [f"\n  preferred_batch_size: [ {', '.join(map(str, preferred))} ]"]
    lines += [] if queue_delay_us is None else [f"\n  max_queue_delay_microseconds: {queue_delay_us}"]
    return "".join(lines)


def _warmed_up(entry: Entry) -> list[int]:
    """The batch sizes that run before the model counts as ready."""
    serving = entry.spec.serving
    preferred = CPU_PREFERRED if serving.preferred is None else serving.preferred
    sizes = {1, *(size for size in preferred if size <= min(WARMED_UP_TO, serving.max_batch_size))}
    return sorted(sizes.union(_tensorrt_profile(entry)) if entry.spec.serving.tensorrt else sizes)


def _warmup(sizes: list[int], side: int, image_type: str) -> str:
    image = f"{{ data_type: {image_type} dims: [ 3, {side}, {side} ] random_data: true }}"
    return ",\n".join(
        f"""\
  {{
    name: "batch of {size}"
    batch_size: {size}
    count: 3
    inputs {{ key: "{CLASSIFIER_INPUT}" value: {image} }}
  }}"""
        for size in sizes
    )


def _accelerators(entry: Entry) -> str:
    """How ONNX Runtime runs an ONNX model, after https://github.com/triton-inference-server/onnxruntime_backend."""
    found = _tensorrt(entry) if entry.spec.serving.tensorrt else ""
    if entry.spec.serving.openvino:
        found += _OPENVINO % entry.spec.serving.openvino.value
    return f"optimization {{\n  execution_accelerators {{\n{found}  }}\n}}\n" if found else ""


def _tensorrt_profile(entry: Entry) -> tuple[int, int, int]:
    """The smallest, the usual and the largest batch, for which one engine is built, and the warm-up runs."""
    largest, chosen = entry.spec.serving.max_batch_size, entry.spec.serving.preferred
    preferred = GPU_PREFERRED if chosen is None else chosen
    return 1, max((size for size in preferred if size <= largest), default=largest), largest


def _tensorrt(entry: Entry) -> str:
    """The part of `execution_accelerators` that has ONNX Runtime run the network with TensorRT on a GPU.

    Given its shapes, ONNX Runtime builds the engine when it loads the model, and one engine takes every batch up to
    max_batch_size. Without them it would build another, for minutes, at each larger batch that comes.
    """
    side = entry.spec.prepared.crop_size
    smallest, _, largest = sizes = _tensorrt_profile(entry)
    shapes = [f"{CLASSIFIER_INPUT}:{batch}x3x{side}x{side}" for batch in sizes]
    mode = "FP16" if entry.spec.precision is Precision.FP16 else "FP32"
    given = {
        "precision_mode": mode,
        "max_workspace_size_bytes": str(WORKSPACE_BYTES),
        "trt_profile_min_shapes": shapes[0],
        "trt_profile_opt_shapes": shapes[1],
        "trt_profile_max_shapes": shapes[2],
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": TENSORRT_CACHE,
        "trt_timing_cache_enable": "true",
        "trt_timing_cache_path": TENSORRT_CACHE,
    }
    parameters = "\n".join(f'        parameters {{ key: "{key}" value: "{value}" }}' for key, value in given.items())
    return f"""\
    # On a GPU, TensorRT builds an engine for batches of {smallest} to {largest} images when the model is loaded:
    # minutes, once for a network, a kind of GPU and a release of TensorRT. Engines stay in {TENSORRT_CACHE},
    # which must be writable and outlive the container. FP16 is faster; `gateway model verify` says how far off it is.
    # No effect on a CPU.
    gpu_execution_accelerator: [
      {{
        name: "tensorrt"
{parameters}
      }}
    ]
"""


_OPENVINO = """\
    # On a CPU, OpenVINO runs it. NVIDIA's backend knows no precision here, and computes in fp32.
    cpu_execution_accelerator: [
      {
        name: "openvino"
        parameters { key: "precision" value: "%s" }
      }
    ]
"""


def _parameter(key: str, value: str | None) -> str:
    """The lines of a parameter, in whose value Triton's text format escapes two characters; "" without a value."""
    if not value:
        return ""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'\nparameters {{ key: "{key}" value: {{ string_value: "{escaped}" }} }}'


def _tensor(name: str, comment: str, size: int, *, before: str = "", after: str = "") -> str:
    """The lines of a tensor with embeddings among others; "" without a size."""
    lines = "\n    ".join((f"# {comment}", f'name: "{name}"', "data_type: TYPE_FP32", f"dims: [ {size} ]"))
    return f"{before}\n  {{\n    {lines}\n  }}{after}" if size else ""


def _bool(value: bool) -> str:  # noqa: FBT001  # a text for it
    return str(value).lower()
