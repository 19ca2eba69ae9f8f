"""The gRPC client of Triton: endpoints, models and versions, balancing, health and recovery."""
