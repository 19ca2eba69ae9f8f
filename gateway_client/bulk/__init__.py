"""Bulk classification: any number of images from many sources to one table; with progress and resuming."""
