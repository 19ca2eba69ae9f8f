"""Health of one Triton: probes, the state of each model, and recovery of models that fail."""
