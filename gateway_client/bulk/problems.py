"""The base class of errors that end a bulk classification."""


class BulkError(Exception):
    """A bulk classification cannot start or continue; the message says what is wrong and what to do."""
