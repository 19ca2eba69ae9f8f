"""Exports spans over OTLP."""
