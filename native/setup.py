"""Builds the C extension; everything else is in pyproject.toml.

EXACT_RESIZE_SANITIZE=1 builds it with the address and undefined-behaviour sanitizers.
"""

import os

from setuptools import Extension, setup

FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fno-strict-aliasing",
    # A fused multiplication rounds once less, and so would make other weights than Pillow's.
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
sanitize = SANITIZERS if os.environ.get("EXACT_RESIZE_SANITIZE") else []

setup(
    ext_modules=[
        Extension(
            "exact_resize._kernel",
            sources=[f"src/{name}.c" for name in ("module", "plan", "portable", "avx2", "avx512")],
            depends=["src/plan.h"],
            # Appended to Python's own flags.
            extra_compile_args=[*FLAGS, *sanitize],
            extra_link_args=sanitize,
            libraries=["m"],
            # One build works for every Python from 3.11 on.
            define_macros=[("Py_LIMITED_API", "0x030b0000")],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
