"""Bulk classification: any number of images from many sources to one table; with progress and resuming."""


class BulkError(Exception):
    """A bulk classification cannot start or continue; the message says what is wrong and what to do."""
