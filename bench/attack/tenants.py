"""What one API key may take from another: slots, sequences, labels, lookups of names, and images in flight."""

import contextlib
import itertools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bench.attack import grpc_calls
from bench.attack.beside import PHOTO_PORT, Request, image_form, inference
from bench.attack.parsers import JSON
from bench.attack.service import SLOW_DOMAIN
from bench.attack.target import ServiceOptions, Target, cases, counted, receive, summary
from bench.photos import coffee, unlike_any

SEQUENCES = 1_100
NAMES = 64
"""URLs of one request whose names never resolve; each request has names of its own."""
MANY_KEYS = ServiceOptions(
    keys=10_000,
    slow_names=True,
    settings=(
        ("log_predictions", "FOLDER/log"),
        ("fetch_urls", f"http://localhost:{PHOTO_PORT}/,http://*"),
        ("fetch_networks", "127.0.0.1/32,::1/128"),
    ),
)


def _flood(target: Target, connections: int, request: Callable[[int], Request]) -> str:
    """Send requests on kept connections, each as soon as the one before it is answered; `request` gets its number."""
    ends = time.monotonic() + target.hold_seconds
    numbers = itertools.count()

    def send(_: int) -> list[str]:
        answers = []
        while time.monotonic() < ends:
            with contextlib.suppress(OSError), target.connect() as connection:
                answer = b"HTTP"
                while answer and time.monotonic() < ends:
                    path, body, content_type = request(next(numbers))
                    length = f"Content-Length: {len(body)}"
                    connection.sendall(target.head(f"POST {path}", f"Content-Type: {content_type}", length) + body)
                    answer = receive(connection)
                    answers.append(summary(answer))
        return answers

    with ThreadPoolExecutor(connections) as threads:
        return counted(itertools.chain.from_iterable(threads.map(send, range(connections))))


def _explanation(_: int) -> Request:
    return "/explain", unlike_any(coffee().data), "image/jpeg"


def _label(number: int) -> Request:
    given = {"request_id": f"attack-{number}", "index": 0, "wrong": True}
    return "/feedback", json.dumps(given).encode(), JSON


def _names(number: int) -> Request:
    images = [{"url": f"http://n{number}-{each}{SLOW_DOMAIN}/x.jpg"} for each in range(NAMES)]
    return "/predict", json.dumps({"images": images}).encode(), JSON


# fmt: off
CASES = [
    *cases(
        ("explanations-beyond-a-rate", "Explanations on four connections, of a key that waits for its rate",
         lambda target: _flood(target, 4, _explanation)),
        beside="explain", options=ServiceOptions(keys=2, quota="rate=100/s burst=100"),
    ),
    *cases(
        ("sequences-that-never-end", "A key that begins more sequences than Triton has places for",
         lambda target: counted(target.post(*inference(number, end=False)) for number in range(1, SEQUENCES))),
        beside="sequence", options=MANY_KEYS,
    ),
    *cases(
        ("feedback-flood", "Feedback on eight connections as fast as it is answered",
         lambda target: _flood(target, 8, _label)),
        ("wrong-keys", "Wrong keys on eight connections as fast as they are refused; the service has 10,000 keys",
         lambda target: _flood(replace(target, key="tig_wrong"), 8, lambda _: image_form())),
        options=MANY_KEYS,
    ),
    *cases(
        ("names-that-never-resolve", "Images by URL on eight connections, whose names never resolve",
         lambda target: _flood(target, 8, _names)),
        beside="url", options=MANY_KEYS,
    ),
    *cases(
        ("bulk-flood", "A key of low priority and half of the images in flight, on 64 connections",
         lambda target: _flood(target, 64, lambda _: image_form())),
        options=ServiceOptions(keys=2, quota="share=0.5 priority=bulk"),
    ),
    *cases(
        ("grpc-uploads-beyond-a-share", "Sixty-four uploads over gRPC of a key that may have a tenth of the buffer",
         grpc_calls.uploads),
        beside="grpc", options=ServiceOptions(keys=2, quota="share=0.1"),
    ),
]
# fmt: on
