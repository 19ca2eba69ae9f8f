"""Models of a Triton that take tensors."""

from collections.abc import Sequence

from gateway.findings import Finding, fail, ok, warn
from gateway.hooks import Plugin
from gateway.inference.backend import PROBE_SECONDS
from gateway.plugins.tensors.settings import TensorSettings
from gateway.settings import Settings


class Tensors(Plugin):
    """Models of a Triton that take tensors; the core reads them from the settings, as `Section.tensor_models`."""

    settings = TensorSettings

    @classmethod
    async def check_triton(cls, settings: Settings, address: str) -> Sequence[Finding]:
        """Send a random tensor through each model of the file."""
        models = TensorSettings.of(settings).tensor_models()
        if not models:
            return ()
        from gateway.errors import GatewayError
        from gateway.inference.backend import Call
        from gateway.timing import Deadline
        from gateway.triton.opening import connector

        endpoint, found = connector(settings)(address), []
        try:
            for name, model in models.items():
                try:
                    config = await endpoint.config(name)
                    codec = model.codec(config)
                    deadline = Deadline.after(PROBE_SECONDS)
                    call = Call([codec.probe()], name, "", None, deadline, "doctor")
                    await endpoint.infer(call, class_count=1, codec=codec)
                except GatewayError as exc:
                    text = f"{name}: {exc.__cause__ or exc}"
                    found.append(fail("tensor model", text, "correct the file, or load the model"))
                    continue
                lacks = codec.limitations(config)
                text = f"{name} gave {codec.classes} scores for a random tensor of {list(model.tensor.shape)}"
                found.append(warn("tensor model", "\n".join([text, *lacks])) if lacks else ok("tensor model", text))
        finally:
            await endpoint.close()
        return found
