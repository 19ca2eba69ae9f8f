"""Limits on what clients may hold, for the promises of docs/explanation/reliability.md.

    Bound      a limit and the amount in use; its error names both
    FairQueue  clients take turns: a request with a thousand files delays no other; each image holds a Lease
    Admission  the queue of all images: memory is bounded; when the queue is full, requests get 503 `overloaded`
    Pool       buffered bytes and streams: at the limit, slow clients lose their PoolLease first
    Pace       an upload that is too slow gets 408
    Account    the processor time that a request takes for decoding is bounded
    Caller     limits of an API key; without a key, ANYONE

gateway/server/connections.py bounds the connections of a process.
"""
