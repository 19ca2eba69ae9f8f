"""Streams of video or camera frames: classified in order, and smoothed by a stateful model."""
