"""The Open Inference Protocol over gRPC, on a separate port: each call becomes a request of the ASGI application.

So keys, quotas, admission, limits, logs, metrics and traces are the same as for `/v2`. The folder is imported only if
GATEWAY_GRPC_PORT is set.
"""
