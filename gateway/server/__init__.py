"""The protocol classes that uvicorn runs: connections, HTTP, WebSocket; draining, workers."""
