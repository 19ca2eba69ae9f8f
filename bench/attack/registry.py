"""All attacks by family."""

from bench.attack import cache, clients, connections, costs, errors, killers, parsers, pictures, streams, urls
from bench.attack.target import Attacks, folded

FLEET = "fleet"
"""The family that is sent to a service with three Tritons; the others are sent to `gateway up`."""
FAMILIES: dict[str, Attacks] = {
    "pictures": pictures.ATTACKS,
    "n-fold": folded(pictures.ATTACKS),
    "costs": costs.ATTACKS,
    "parsers": parsers.ATTACKS,
    "errors": errors.ATTACKS,
    "clients": clients.ATTACKS,
    "connections": connections.ATTACKS,
    "streams": streams.ATTACKS,
    "urls": urls.ATTACKS,
    "cache": cache.ATTACKS,
    "killers": killers.ATTACKS,
    FLEET: killers.ON_FLEET,
}
TITLES = {
    "pictures": "One costly image, or some",
    "n-fold": "As many of each as one request may have, up to 20 MB and 1,000 files",
    "costs": "Sums of costly files in one request",
    "parsers": "Bytes that are cheap to send",
    "errors": "Clients' errors",
    "clients": "Clients that are slow, leave, or are many",
    "connections": "Connections of one client",
    "streams": "Streams; CPU s a second",
    "urls": "Images by URL",
    "cache": "Another client's answer",
    "killers": "Processes",
    FLEET: "Processes of three Tritons",
}
