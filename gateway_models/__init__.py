"""From a trained network to a model in a Triton model repository, with a proof that its answers stayed the same."""
