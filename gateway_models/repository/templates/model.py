"""A Triton model that runs a user's code: this file, served.py, served_code.py, served.json and code/.

`gateway model add FILE.py:NAME` writes one for a function, and `gateway model postprocess` and `gateway model
calibrate` for a post-processing step.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# Files in this folder.
from served import Served  # type: ignore[import-not-found]  # noqa: E402
from served_code import UserCodeError  # type: ignore[import-not-found]  # noqa: E402


class TritonPythonModel:
    """One process with the code."""

    def initialize(self, args: dict[str, str]) -> None:
        """Import the code; raises TritonModelException."""
        try:
            self.served = Served(HERE, args)
        except UserCodeError as exc:
            pb_utils.Logger.log_error(traceback.format_exc())
            raise pb_utils.TritonModelException(str(exc)) from exc
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {self.served.name}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Call the code once for all requests, or if that fails once for each, so that each gets its own error.

        The log has each traceback of the batch once: it is for the operator, and clients must not see the user's code.
        """
        logged: set[str] = set()

        def responses(some: list[Any]) -> list[Any]:
            try:
                found: list[Any] = self.served.responses(some)
            except (Exception, SystemExit) as exc:  # for any error, Triton must get one response for each request
                if len(some) == 1:
                    return [self._failed(exc, logged)]
            else:
                return found
            # Outside the handler, so that the batch's traceback does not precede each of theirs.
            return [responses([request])[0] for request in some]

        return responses(requests)

    def _failed(self, exc: BaseException, logged: set[str]) -> Any:  # noqa: ANN401  # Triton's, without public names
        trace = "".join(traceback.format_exception(exc))
        if trace not in logged:
            logged.add(trace)
            pb_utils.Logger.log_error(f"{self.served.name} failed: {trace}")
        self.served.end_if_unusable()
        text = f"{self.served.name} failed with {type(exc).__name__}; Triton's log has the traceback"
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
