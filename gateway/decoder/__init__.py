"""The program that decodes images: `python -m gateway.decoder`, one child process of `gateway.ingest.decoders` each.

The serving process imports nothing of it. It imports from the serving side only plain data: formats, headers, sizes
and limits.
"""
