"""The web page, the OpenAPI page, and the Python client's wheel."""
