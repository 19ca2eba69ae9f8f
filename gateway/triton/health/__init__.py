"""Health of one Triton: probes, what is known of each model, and recovery of models that fail."""
