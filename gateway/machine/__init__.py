"""What the machine or container has, and how many processes it should run.

Standard library only, and nothing of the project: it also runs in NVIDIA's image, beside Triton.
"""
