"""Every limit on what clients may hold at once, and the promise of docs/explanation/reliability.md that it keeps.

    Admission    memory is bounded: images, bytes and decoding in flight; others wait, and keys take turns
    RoundRobin   no request and no client delays the others: decoders, open files and fetches alternate between them
    Pool         who is slow loses its own request first: bytes of uploads and of responses, and streams
    Pace         who sends too slowly is refused
    Account      limits the processor time that a request takes for decoding
    Caller       what an API key may take; without a key, ANYONE
    Connections  a process has a bounded number, and the least useful one ends for another; each has Turns

Each counts what is held in a Bound, and gives a Lease (of the admission a Permit, of a pool a PoolLease) to release.
"""
