"""The Open Inference Protocol, version 2 over REST: what clients of Triton and KServe speak."""
