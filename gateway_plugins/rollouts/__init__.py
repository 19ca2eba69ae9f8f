"""Roll-outs: shares of requests for several versions of a model, and shadow versions."""
