"""All cases by family: the families are the tables of docs/explanation/attacks.md, by their titles."""

from bench.attack import connections, decoders, grpc_calls, parsers, streams, tenants, urls
from bench.attack.target import Case, folded

FAMILIES: dict[str, list[Case]] = {
    "images": decoders.CASES,
    "n-fold": folded(decoders.CASES),
    "sums": decoders.SUMS,
    "parsers": parsers.CASES,
    "connections": connections.CASES,
    "streams": streams.CASES,
    "grpc": grpc_calls.CASES,
    "tenants": tenants.CASES,
    "urls": urls.CASES,
}
TITLES = {
    "images": "One costly image, or some",
    "n-fold": "As many of each as one request may have, up to 20 MB and 1,000 files",
    "sums": "Sums of costly files",
    "parsers": "Bytes that are cheap to send",
    "connections": "Connections, and clients that are slow, leave, or do not read",
    "streams": "Streams over WebSockets",
    "grpc": "The gRPC server, beside a client of it",
    "tenants": "Rules of a tenant, beside another client's requests of that kind",
    "urls": "Images by URL",
}
