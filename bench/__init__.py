"""Throughput of the service compared with the bare limit of the machine, measured in the same run."""
