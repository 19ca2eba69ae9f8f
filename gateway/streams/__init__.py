"""Frames of a video or a camera, one after the other: classified in order, and steadied by a stateful model."""
