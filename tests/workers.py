"""How tests are spread over the workers of a run: tests that share a start stay together; the longest start first."""

from typing import Any

import pytest

WITH_THE_NETWORK = (
    "tests/e2e/test_answers.py",
    "tests/e2e/test_api_docs.py",
    "tests/e2e/test_ingest_damage.py",
    "tests/e2e/test_ingest_forms.py",
    "tests/reliability/test_cache.py",
    "tests/triton_models/test_preprocessor.py",
)
"""Files that use `triton`: in one worker, so that its processes import torch once."""
NETWORKS = (
    "tests/gateway_models/networks/",
    "tests/gateway_models/commands/test_models.py",
    "tests/gateway_models/repository/",
    "tests/triton_models/",
)
PROOFS = (
    "tests/gateway_models/proof/",
    "tests/docs/",
    "tests/e2e/test_versions.py",
    "tests/gateway/plugins/tensors/test_on_triton.py",
    "tests/reliability/test_model_recovery.py",
    "tests/gateway_local/backends/",
)
SAMPLES = (
    "tests/gateway/decoder/test_decoding.py",
    "tests/gateway/decoder/test_decoders.py",
    "tests/gateway/ingest/test_inspection.py",
    "tests/gateway/ingest/test_decode_policy.py",
    "tests/gateway/ingest/test_costly_headers.py",
)
BROWSER = ("tests/browser/",)
CHART = ("tests/deploy/test_chart.py", "tests/deploy/test_value_sets.py")
TOGETHER = (WITH_THE_NETWORK, NETWORKS, PROOFS, SAMPLES, BROWSER, CHART)
"""Files that run in one worker, since they share what takes seconds: Triton, torch, encoded samples, a browser.

A file belongs to the first group that names it or its folder.
"""
LONGEST = (
    *NETWORKS,
    *PROOFS,
    "tests/reliability/test_up.py",
    *BROWSER,
    *WITH_THE_NETWORK,
    *SAMPLES,
    *CHART,
    "tests/reliability/",
    "tests/gateway/triton/test_batching.py",
    "tests/e2e/",
    "tests/gateway_local/",
    "tests/gateway_models/",
    "tests/test_",
    "tests/gateway_client/",
    "tests/gateway/plugins/",
    "tests/gateway/decoder/",
    "tests/native/",
    "tests/gateway/test_",
    "tests/gateway/server/",
)
"""Files and folders that take longest, the longest first: started last, one of them would prolong the whole run."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Assign whole files to each worker, and some groups of files to one worker; see TOGETHER."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            for files in TOGETHER:
                if nodeid.startswith(files):
                    return files[0]
            return super()._split_scope(nodeid)

    return Together(config, log) if config.getoption("dist") == "loadfile" else None


def position(nodeid: str) -> int:
    """The place of a test's file in LONGEST."""
    return next((place for place, name in enumerate(LONGEST) if nodeid.startswith(name)), len(LONGEST))


_crashed = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Note that a worker has crashed."""
    node.config.stash[_crashed] = error is not None or node.config.stash.get(_crashed, False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Exit with INTERNAL_ERROR if a worker has crashed: a rerun of its failed test would not run its other tests."""
    if session.config.stash.get(_crashed, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
