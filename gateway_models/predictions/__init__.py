"""The prediction log: what the models answered, clients' feedback, and what can be learned from both.

The service hands finished results to `service_log`; a thread, `writer`, writes them. Commands read the log through
`reader`.
"""
