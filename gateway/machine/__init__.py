"""The resources of the machine or container, and how many processes it should run.

Standard library only, and nothing of the project: it also runs in NVIDIA's image, next to Triton.
"""
