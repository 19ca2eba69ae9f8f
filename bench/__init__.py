"""Throughput of the service beside the bare limit of the machine, measured side by side in one run."""
