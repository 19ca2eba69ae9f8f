"""The environment variables of a child process, by its task: no child gets the service's secrets."""

import os
from fnmatch import fnmatchcase

EVERY_CHILD = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_*", "LD_LIBRARY_PATH", "PYTHON*")
"""Variables that Python and the C library need: names, and patterns of names."""
NETWORKS = (
    *("USER", "LOGNAME", "LD_PRELOAD", "MALLOC_*", "GLIBC_TUNABLES"),
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "OPENCV_*"),
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "NCCL_*", "NVIDIA_*", "TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "ORT_*"),
    *("TF_*", "KERAS_*", "TRANSFORMERS_*", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "MODEL_*"),
)
"""For Triton and other processes with networks and functions. MODEL_* is for users' functions and post-processing."""
DOWNLOADS = (
    *("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
PIP = ("PIP_*", "NETRC", *DOWNLOADS)
"""For pip, which fetches Triton."""


def child_environment(*allowed: str) -> dict[str, str]:
    """The variables of this process that a child may have: EVERY_CHILD and the `allowed` ones."""
    patterns = (*EVERY_CHILD, *allowed)
    return {name: value for name, value in os.environ.items() if any(fnmatchcase(name, each) for each in patterns)}
