"""Checks of the Triton servers in GATEWAY_TRITON_URL: whether they answer, and the known faults of their version."""

from gateway.errors import ContractBroken, GatewayError, ModelNotFound
from gateway.findings import Finding, fail, ok, warn
from gateway.inference.backend import PROBE_SECONDS, Call
from gateway.settings import Settings, variable
from gateway.timing import Deadline
from gateway.triton.client import TritonEndpoint, version_numbers
from gateway.triton.codecs import Codecs
from gateway.triton.configs import HOLDS_BACK, REMEDY, has_queue_policy, instances_on_gpus, sizes
from gateway.triton.opening import Addresses, TlsError, connector
from gateway_local.devices import arguments, pool_bytes
from gateway_local.doctor.repository import LIMITED

ABSENT_MODEL = "gateway-doctor-asks"
"""A model that no repository has: if only its name is refused, Triton allows loading models."""

CURRENT_IMAGE = "nvcr.io/nvidia/tritonserver:26.11-py3"
"""NVIDIA's image without the faults below."""


CURRENT = f"in production run {CURRENT_IMAGE} or newer, with Docker, podman or apptainer: docs/guides/current-triton.md"
SOUND_SINCE = (2, 75)
"""Older ones crash by a use after free in the batcher (fixed in 26.11), or when a process of the Python backend dies
during a call (server issue 8882); before 26.01 they report that they are ready while a model's process is dead."""
FAULTS = (
    "is older than 2.75 (26.11): it has known crashes and, before 2.71 (26.07), vulnerabilities such as "
    "CVE-2026-24207; keep it on a private network"
)


async def tritons(settings: Settings) -> list[Finding]:
    """The findings about every Triton."""
    try:
        connect = connector(settings)
    except TlsError as exc:
        return [fail("TLS", str(exc), "correct the file or the variable")]
    found = []
    for address in await Addresses(settings.triton_url).current():
        endpoint = connect(address)
        try:
            found += await check_endpoint(endpoint, settings)
        finally:
            await endpoint.close()
    return found


async def check_endpoint(endpoint: TritonEndpoint, settings: Settings) -> list[Finding]:
    """The findings about one Triton."""
    try:
        version = await endpoint.fetch_server_metadata()
    except GatewayError as exc:
        return [
            fail(
                "Triton",
                f"{endpoint.address} does not answer: {exc.__cause__ or exc}",
                f"start it, open its gRPC port, or correct {variable('triton_url')}",
            )
        ]
    return [
        ok("Triton", f"{endpoint.address} is Triton {version}"),
        *known_faults(version),
        await _control_mode(endpoint, settings),
        await _contract(endpoint, settings),
        await _inference(endpoint, settings),
    ]


def known_faults(version: str) -> list[Finding]:
    """A warning about a version such as 2.51.0 that has known faults."""
    if version_numbers(version) >= SOUND_SINCE:
        return []
    return [warn("Triton's version", f"{version} {FAULTS}", CURRENT)]


async def _control_mode(endpoint: TritonEndpoint, settings: Settings) -> Finding:
    if not settings.heal:
        return ok("healing", f"off: {variable('heal')} is false")
    try:
        await endpoint.load(ABSENT_MODEL)
    except GatewayError as exc:
        if "is not allowed" in str(exc.__cause__):
            return warn(
                "healing",
                "Triton does not allow loading models: a model whose process dies stays dead until Triton is restarted",
                "start it with --model-control-mode=explicit --load-model=*",
            )
    return ok("healing", "models whose process dies can be reloaded")


async def _contract(endpoint: TritonEndpoint, settings: Settings) -> Finding:
    model = settings.model
    try:
        config = await endpoint.config(model)
        codec, steps = Codecs.of_settings(settings).of(config), await endpoint.step_configs(config)
    except ContractBroken as exc:
        return fail("model", exc.message, "correct its config.pbtxt")
    except ModelNotFound:
        return fail(
            "model", f"Triton serves no model {model!r}", f"load it, or choose another one with {variable('model')}"
        )
    except GatewayError as exc:
        return fail("model", f"{model}: {exc.__cause__ or exc}", "see Triton's log")
    if held_back := [step.name for step in steps if has_queue_policy(step)]:
        return warn("model", f"{', '.join(held_back)}: {HOLDS_BACK}", f"in config.pbtxt, {REMEDY}")
    if on_gpu := [step.name for step in steps if step.backend == "python" and instances_on_gpus(step, gpus=1)]:
        # In the server's configuration KIND_AUTO is already the CPU or a GPU. It does not report the size of its pool.
        configs = {each.name: each for each in (config, *steps)}
        needed = " ".join(arguments(pool_bytes(configs, 1, settings.workers * settings.max_images_in_flight)))
        return warn(
            "model",
            f"{', '.join(on_gpu)} leaves images on the GPU: with a pool smaller than {needed or 'the default'} answers "
            "are silently wrong under load",
            "start Triton with that option, for the images in flight of all its gateways; or KIND_CPU in config.pbtxt",
        )
    if lacks := codec.limitations(steps[-1]):
        return warn("model", "\n".join([f"{model} is served with limitations", *lacks]), LIMITED)
    return ok("model", "\n".join([f"{model} fits the gateway's contract", *map(sizes, steps)]))


async def _inference(endpoint: TritonEndpoint, settings: Settings) -> Finding:
    deadline = Deadline.after(PROBE_SECONDS)
    try:
        codec = Codecs.of_settings(settings).of(await endpoint.config(settings.model))
        call = Call([codec.probe()], settings.model, "", None, deadline, "doctor")
        await endpoint.infer(call, class_count=1, codec=codec)
    except GatewayError as exc:
        return fail("inference", f"an image was not classified: {exc.__cause__ or exc}", "see Triton's log")
    return ok("inference", "an image was classified")
