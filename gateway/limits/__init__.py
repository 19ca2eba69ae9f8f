"""Limits on what clients may hold, for the promises of docs/explanation/reliability.md.

    Admission    bounds memory: images, bytes and decoding in flight; others wait, and keys take turns
    RoundRobin   alternates decoders, open files and fetches between requests and between clients
    Pool         evicts slow clients first: bytes of uploads and of responses, and streams
    Pace         refuses slow senders
    Account      limits the processor time that a request takes for decoding
    Caller       limits of an API key; without a key, ANYONE

A Bound counts each of them, and gives a Lease (of the admission a Permit, of a pool a PoolLease) to release.
"""
