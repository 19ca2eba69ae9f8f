"""Quotas of API keys at work: the requests of one key are a tenant. Used only where the key file has quotas."""
