"""Models of a Triton that take tensors instead of files: the gateway's decoders make their input."""
