# Three images out of one file, each a target:
#   gateway     the API; no torch inside
#   triton      Triton for GPUs, from NVIDIA's image, with the default model
#   triton-cpu  Triton for machines without a GPU, from a PyPI wheel, with the default model
# All that is downloaded is downloaded here; the containers install nothing when they start.
# PIP_INDEX_URL and PIP_EXTRA_INDEX_URL are pip's own variables; docs/guides/docker.md says what they are good for.
ARG PYTHON_IMAGE=python:3.12-slim
ARG COMPILER_IMAGE=python:3.12
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.11-py3


# The resize kernel, where there is a compiler. Its one wheel serves every CPython from 3.11 on, that of NVIDIA's image too.
FROM ${COMPILER_IMAGE} AS native
ARG PIP_INDEX_URL
COPY native /native
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels /native


# The API's virtual environment: without pip, which the API does not need.
FROM ${PYTHON_IMAGE} AS gateway-build
ARG PIP_INDEX_URL
WORKDIR /app
COPY constraints.txt LICENSE pyproject.toml README.md ./
COPY gateway gateway
COPY gateway_cli gateway_cli
COPY gateway_client gateway_client
COPY gateway_local gateway_local
COPY gateway_models gateway_models
COPY --from=native /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/gateway \
 && pip --python /opt/gateway/bin/python install -c constraints.txt '.[heic,otel]' /wheels/*.whl


# The installed package with all that `gateway up` would prepare: the default model and the wheel's Triton.
FROM ${PYTHON_IMAGE} AS local
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /app
COPY constraints.txt ./
# In a layer of its own, because torch is gigabytes and a change of the code should not unpack it again.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/gateway \
 && /opt/gateway/bin/pip install -c constraints.txt torch torchvision
COPY LICENSE pyproject.toml README.md setup.py ./
COPY gateway gateway
COPY gateway_cli gateway_cli
COPY gateway_client gateway_client
COPY gateway_local gateway_local
COPY gateway_models gateway_models
COPY triton_backends triton_backends
COPY triton_models triton_models
COPY --from=native /wheels /wheels
# With setup.py, which makes triton_backends and triton_models part of what is installed. /app/triton_models is the
# repository that the commands below work on.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/gateway/bin/pip install -c constraints.txt '.[local]' /wheels/*.whl
ENV PATH=/opt/gateway/bin:$PATH \
    XDG_CACHE_HOME=/var/cache
RUN gateway model export \
 && gateway triton fetch


# On top of `local` instead of a copy out of it, so that a change of the code does not copy torch again.
FROM local AS triton-cpu
RUN useradd --uid 1000 --create-home triton-server
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 1000:1000
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
ENTRYPOINT ["gateway", "triton", "run"]
CMD ["--host=0.0.0.0"]


FROM ${TRITON_IMAGE} AS triton
# Without PIP_EXTRA_INDEX_URL: a preprocessor that somebody puts on a GPU needs a torch with CUDA.
ARG PIP_INDEX_URL
COPY constraints.txt /opt/preprocessor/
COPY --from=native /wheels /wheels
# Into the image's own Python, because that is the one that Triton's Python backend embeds, whatever PYTHONPATH says.
# --ignore-installed: what the distribution installed has no record by which pip could remove it. The import at the end fails
# the build, not the first start, where a base image has another Python than the pinned packages are built for.
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip install -c /opt/preprocessor/constraints.txt --break-system-packages --ignore-installed \
        numpy opencv-python-headless pillow torch torchvision /wheels/*.whl
RUN ["python3", "-c", "import cv2, exact_resize, numpy, PIL, torch, torchvision"]
# TorchScript runs in the image's own libtorch backend, so triton_backends is not copied.
COPY --from=local /app/triton_models /models
# What sizes the models to the container when it starts: standard library only.
COPY gateway/__init__.py gateway/capacity.py gateway/cgroups.py gateway/cores.py gateway/gpus.py gateway/memory.py \
     /opt/sized/gateway/
COPY gateway_local/__init__.py gateway_local/sizing.py /opt/sized/gateway_local/
COPY gateway_local/sized_triton.py /opt/sized/__main__.py
ENV PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
# The options of gateway_local/server.py, and --require-gpu: without a GPU the container ends with the reason.
CMD ["python3", "/opt/sized", "--require-gpu", "tritonserver", \
     "--model-repository=/models", \
     "--model-control-mode=explicit", \
     "--load-model=*", \
     "--disable-auto-complete-config", \
     "--cache-config=local,size=268435456", \
     "--grpc-http2-min-recv-ping-interval-without-data=1000", \
     "--grpc-http2-max-ping-strikes=0", \
     "--exit-timeout-secs=5", \
     "--backend-config=python,shm-default-byte-size=16777216", \
     "--backend-config=python,shm-growth-byte-size=16777216"]


FROM ${PYTHON_IMAGE} AS gateway
RUN useradd --uid 1000 --create-home gateway
COPY --from=gateway-build /opt/gateway /opt/gateway
WORKDIR /home/gateway
ENV GATEWAY_HOST=0.0.0.0 \
    GATEWAY_PORT=8080 \
    PATH=/opt/gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 1000:1000
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ[\"GATEWAY_PORT\"]}/health/live', timeout=4)"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
