"""From an upload to an image that Triton can take: no HTTP framework, no gRPC."""
