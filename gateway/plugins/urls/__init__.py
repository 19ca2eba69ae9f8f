"""Fetches images by URL, from the hosts and buckets that the settings allow; loaded only if they allow some."""
