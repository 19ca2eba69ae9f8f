"""What the gateway adds to uvicorn: header bounds, draining, unread bodies, workers."""
