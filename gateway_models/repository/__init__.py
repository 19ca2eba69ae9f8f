"""A Triton model repository: its entries, their versions and their configuration files."""
