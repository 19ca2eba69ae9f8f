"""Embeddings of images: POST /embed."""
