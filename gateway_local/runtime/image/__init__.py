"""Triton out of NVIDIA's container image, without Docker: pulled from a registry, unpacked, run.

From the name of an image to a process:

    reference.py   REGISTRY/NAME[:TAG|@DIGEST]
    registry.py    the registry's API: tokens, manifests, layers
    tree.py        layers → the files of the image
    elf.py         what a program or library needs to run
    unpack.py      the image's files → a folder with the server, the backends and the libraries that they need
    fetch.py       all of these, into the cache folder
    use.py         the folder → a Runtime that can be started
"""
