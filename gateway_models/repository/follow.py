"""`gateway model pull --follow`: keeps a folder like a bucket, and has the pod's Triton load what has changed.

It is Triton's repository in a pod, without a library for buckets in Triton.
"""

import contextlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path

import httpx

from gateway.errors import UserError
from gateway.triton.client import pause_seconds
from gateway.values.files import whole_file
from gateway.values.rollout import FOLLOW_SECONDS
from gateway.values.safe_path import SafePath
from gateway_client.direct import DIRECT
from gateway_local.sizing import CONFIG
from gateway_models.repository.bucket import (
    OWN,
    BucketError,
    ObjectChanged,
    Objects,
    RepositoryBucket,
    ensembles_of,
    in_order,
)

ATTEMPTS = 10
"""How often a bucket is listed for a copy while it keeps changing."""
LOAD_SECONDS = 600.0
"""Longest time that Triton may take to load a model."""
SETTLE_SECONDS = 5.0
"""Pause before models are loaded: Triton's container completes their configurations, every 2 seconds."""
SPREAD = 0.25
"""Share of the interval by which it varies, so that Triton servers load at different times."""

Say = Callable[[str], None]


class Follower:
    """A folder that is kept like a bucket.

    A file next to the folder records what was copied, so that another process can continue.
    """

    def __init__(self, bucket: RepositoryBucket, folder: Path) -> None:
        self._bucket, self._folder = bucket, folder
        self._state = folder.with_name(f".{folder.name}.pulled.json")

    def update(self) -> set[str]:
        """Copy all changes, and return the changed models; raises BucketError.

        Files that the bucket no longer has are deleted. A bucket that is empty is an error, and deletes nothing.
        """
        for _ in range(ATTEMPTS):
            with contextlib.suppress(ObjectChanged):
                return self._update()
        raise BucketError(f"{self._bucket.url} changes too fast to be copied")

    def _update(self) -> set[str]:
        there, here = self._bucket.objects(), self._copied()
        if not any(path.name == CONFIG for path in there):
            raise BucketError(f"{self._bucket.url} holds no model repository: no MODEL/{CONFIG}")
        wanted = [
            path for path, each in there.items() if here.get(path) != each.tag or not path.below(self._folder).is_file()
        ]
        gone = [path for path in here if path not in there]
        if wanted or gone:
            self._copy(there, wanted, gone)
        return {path.top for path in (*wanted, *gone) if "/" in path}

    def _copy(self, there: Objects, wanted: Collection[SafePath], gone: Collection[SafePath]) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        # Next to the folder: Triton must not see half of it.
        with tempfile.TemporaryDirectory(prefix=".pulling-", dir=self._folder.parent) as scratch:
            drafts = Path(scratch)
            for path in wanted:
                self._bucket.download(path, drafts)
            if self._bucket.objects() != there:
                raise ObjectChanged(f"{self._bucket.url} was changed while it was copied")
            self._folder.mkdir(exist_ok=True)
            for path in in_order(wanted, ensembles_of(drafts) | ensembles_of(self._folder)):
                target = path.below(self._folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.below(drafts).replace(target)
        for path in gone:
            target = path.below(self._folder)
            target.unlink(missing_ok=True)
            self._remove_empty(target.parent)
        with whole_file(self._state) as draft:
            draft.write_text(json.dumps({path: each.tag for path, each in there.items()}))

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder without files, and those above it: to Triton, an empty folder is a version."""
        while folder != self._folder and folder.is_dir():
            if any(path.is_file() and not path.as_posix().endswith(OWN) for path in folder.rglob("*")):
                return
            shutil.rmtree(folder, ignore_errors=True)
            folder = folder.parent

    def _copied(self) -> dict[SafePath, str]:
        try:
            return {SafePath(path): tag for path, tag in json.loads(self._state.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as exc:
            raise BucketError(f"{self._state} cannot be read: {exc}; delete it and {self._folder}") from exc


def load_models(url: str, repository: Path, models: Collection[str], say: Say) -> set[str]:
    """Have the Triton at an http:// URL load models of its repository; returns the models that failed.

    Steps are loaded before ensembles, a model after its versions, and between two loads there is a pause for calls.
    Removed models are unloaded once gateways have followed the loaded ones.
    """
    ensembles, failed, pause = ensembles_of(repository), set(), 0.0
    gone = {name for name in models if not (repository / name / CONFIG).is_file()}
    changed = sorted({*models} - gone, key=lambda name: (name not in ensembles, name), reverse=True)
    with httpx.Client(base_url=url.rstrip("/"), timeout=LOAD_SECONDS, mounts=DIRECT) as client:
        for name in (*changed, *sorted(gone)):
            time.sleep(pause)
            began = time.monotonic()
            action = "unload" if name in gone else "load"
            try:
                response = client.post(f"/v2/repository/models/{name}/{action}", json={})
                reason = "" if response.status_code == HTTPStatus.OK else response.text[:500]
            except httpx.HTTPError as exc:
                reason = str(exc) or type(exc).__name__
            pause = pause_seconds(time.monotonic() - began)
            if name in ensembles and name == changed[-1]:
                pause = FOLLOW_SECONDS
            if reason:
                failed.add(name)
            say(f"Triton did not {action} {name}: {reason}" if reason else f"Triton has {action}ed {name}")
    return failed


def follow(follower: Follower, interval_seconds: float, say: Say, load: Callable[[set[str]], set[str]]) -> None:
    """Update for ever: a failure is reported, and the next update tries again.

    `load` has a Triton load models and returns the ones that failed.
    """
    pending: set[str] = set()
    while True:
        time.sleep(interval_seconds * random.uniform(1 - SPREAD, 1 + SPREAD))  # noqa: S311  # no secret
        try:
            changed = follower.update()
        except (UserError, OSError) as exc:
            say(f"{exc}; trying again")
            continue
        if changed:
            say(f"copied changes of {', '.join(sorted(changed))}")
        pending = load(pending | changed) if pending | changed else pending
