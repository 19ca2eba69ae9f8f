"""The Open Inference Protocol as a codec: requests in, responses out; no HTTP."""
