"""Recovery of Tritons: reloads models that fail, and loads those that are missing."""
