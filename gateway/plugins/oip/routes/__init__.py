"""The Open Inference Protocol, version 2 over REST, for clients of Triton and KServe."""
