"""The Open Inference Protocol over gRPC, on a port of its own: each call becomes a request of the ASGI application.

So keys, quotas, admission, limits, logs, metrics and traces are those of `/v2`. The folder is imported only if
GATEWAY_GRPC_PORT is set.
"""
