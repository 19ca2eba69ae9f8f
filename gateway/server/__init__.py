"""The protocol classes that uvicorn runs: connections, HTTP, WebSocket; draining, unread bodies, workers."""
