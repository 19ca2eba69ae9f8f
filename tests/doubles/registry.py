"""A registry on loopback that fails on demand: for faults that a real one does not have when a test needs them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.doubles.http import Asked, Reply, http_server
from tests.triton_images import StoredImages


@dataclass
class FaultyRegistry:
    """Answers as the distribution specification has it, unless `answer` has a reply for a request."""

    images: StoredImages
    host: str = ""
    requests: list[Asked] = field(default_factory=list)
    answer: Callable[[Asked], Reply | None] = lambda asked: None

    def asked(self, part: str) -> list[Asked]:
        """The requests whose paths contain a text."""
        return [request for request in self.requests if part in request.path]

    def reply(self, asked: Asked) -> Reply:
        """The answer to a request."""
        self.requests.append(asked)
        if (reply := self.answer(asked)) is not None:
            return reply
        kind, name = asked.path.split("/")[-2:]
        if kind == "manifests" and name in self.images.manifests:
            media_type, content = self.images.manifests[name]
            return Reply(200, content, {"Content-Type": media_type})
        if kind == "blobs" and name in self.images.blobs:
            content = self.images.blobs[name]
            if match := re.fullmatch(r"bytes=(\d+)-", asked.headers.get("range", "")):
                start = int(match[1])
                span = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
                return Reply(206, content[start:], span) if start < len(content) else Reply(416)
            return Reply(200, content)
        return Reply(404)


@contextmanager
def faulty_registry(images: StoredImages | None = None) -> Iterator[FaultyRegistry]:
    """Run such a registry while the context is open."""
    registry = FaultyRegistry(images or StoredImages())
    with http_server(registry.reply) as port:
        registry.host = f"127.0.0.1:{port}"
        yield registry
