"""The protocol classes that uvicorn runs: connections and HTTP; draining, workers."""
