"""Recovery of Triton servers: reloads failing models, and loads missing ones."""
