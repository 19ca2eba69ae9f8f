"""API keys: files of their hashes, and the quotas of keys; the requests of one key are a tenant."""
