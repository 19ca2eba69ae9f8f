"""The prediction log: the models' answers, clients' feedback, and evaluations of both.

The service hands finished results to `service_log`; a thread, `writer`, writes them. Commands read the log through
`reader`.
"""
