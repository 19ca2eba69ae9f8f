"""The program that decodes images: `python -m gateway.decoder`, a child process of `gateway.ingest.decoder_pool`.

The serving process imports nothing of it. It imports from the serving side only plain data: formats, headers, sizes
and limits.
"""
