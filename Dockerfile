# Four images out of one file, each a target:
#   gateway          the API; no torch inside
#   triton           Triton for GPUs, from NVIDIA's image, with the default model; no torch but the backend's own libtorch
#   triton-cpu       Triton for machines without a GPU, from a PyPI wheel, with the default model
#   triton-cpu-onnx  the same without torch: every network is ONNX
# All that is downloaded is downloaded here; the containers install nothing when they start.
# PIP_INDEX_URL and PIP_EXTRA_INDEX_URL are pip's own variables; docs/guides/docker.md says what they are good for.
ARG PYTHON_IMAGE=python:3.12-slim
ARG COMPILER_IMAGE=python:3.12
# NAME:TAG@sha256:… is better, since a tag may move.
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.11-py3


# What every image installs: this project, and the resize kernel, whose one wheel serves every CPython from 3.11 on, that of
# NVIDIA's image too.
FROM ${COMPILER_IMAGE} AS wheels
ARG PIP_INDEX_URL
COPY native /native
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels /native
WORKDIR /project
COPY LICENSE THIRD_PARTY.md pyproject.toml README.md setup.py ./
COPY gateway gateway
COPY gateway_client gateway_client
COPY gateway_local gateway_local
COPY gateway_models gateway_models
COPY triton_models triton_models
RUN --mount=type=cache,target=/root/.cache/pip \
    pip wheel --no-deps --wheel-dir /wheels .


# The API's virtual environment: without pip, which the API does not need.
FROM ${PYTHON_IMAGE} AS gateway-build
ARG PIP_INDEX_URL
# With `heic` it decodes HEIC; pillow-heif's wheel contains libx265, which is under the GPL, version 2. For the prediction log in a
# folder or bucket: `log` (PyArrow takes 150 MB).
ARG EXTRAS=fleet,grpc,otel
WORKDIR /app
COPY constraints.txt ./
COPY --from=wheels /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/gateway \
 && pip --python /opt/gateway/bin/python install -c constraints.txt \
        "$(echo /wheels/triton_image_gateway-*.whl)[${EXTRAS}]" /wheels/exact_resize-*.whl


# Extension modules come with their debug information, 48 MB of it, and numpy with its tests, 17 MB; `strip` is where the compiler is.
FROM wheels AS gateway-stripped
COPY --from=gateway-build /opt/gateway /opt/gateway
RUN find /opt/gateway -name '*.cpython-*.so' -exec strip --strip-debug {} + \
 && rm -r /opt/gateway/lib/python3*/site-packages/numpy/*/tests


# In a stage of its own, because torch may be gigabytes: `model` and `triton-cpu` share its layer.
FROM ${PYTHON_IMAGE} AS torch
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /app
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/gateway \
 && pip --python /opt/gateway/bin/python install -c constraints.txt torch torchvision \
 # For programs that are compiled against torch, and torch's own tests; bin/torch_shm_manager must stay.
 && torch=$(echo /opt/gateway/lib/python3*/site-packages/torch) \
 && rm -rf "$torch/include" "$torch/test" "$torch"/bin/test_* "$torch"/bin/protoc* \
 && if ls -d /opt/gateway/lib/python3*/site-packages/nvidia >/dev/null 2>&1; then \
        echo "This torch brings gigabytes of CUDA, which the images for machines without a GPU never load:" \
             "name an index with CPU builds as PIP_EXTRA_INDEX_URL (docs/guides/docker.md)"; fi


# The default model, as TorchScript and as ONNX. It builds on every architecture that torch has wheels for.
FROM torch AS model
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY --from=wheels /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/gateway/bin/python install -c constraints.txt \
        "$(echo /wheels/triton_image_gateway-*.whl)[local]" /wheels/exact_resize-*.whl
COPY triton_models triton_models
RUN --mount=type=bind,source=deploy/images,target=/images \
    /opt/gateway/bin/python /images/export_models.py /app


# This project with ONNX Runtime alone.
FROM ${PYTHON_IMAGE} AS onnx-build
ARG PIP_INDEX_URL
WORKDIR /app
COPY constraints.txt ./
COPY --from=wheels /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/gateway \
 && pip --python /opt/gateway/bin/python install -c constraints.txt onnxruntime /wheels/*.whl


# Triton from the wheel, which is for x86-64 alone; its own libpython is not used.
FROM onnx-build AS fetched
ARG PIP_INDEX_URL
ENV XDG_CACHE_HOME=/var/cache
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/gateway/bin/python -m ensurepip \
 && /opt/gateway/bin/gateway triton fetch \
 && rm -f /var/cache/triton-image-gateway/triton-*/nvidia_pytriton.libs/libpython3-*


FROM torch AS triton-cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY --from=wheels /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/gateway/bin/python install -c constraints.txt onnxruntime /wheels/*.whl \
 # A second copy, for C programs, of what the Python module contains.
 && rm -f /opt/gateway/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.* \
 && useradd --uid 1000 --create-home triton-server
COPY --from=fetched /var/cache/triton-image-gateway /var/cache/triton-image-gateway
COPY --from=model /app/triton_models /app/triton_models
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/var/cache
USER 1000:1000
RUN --mount=type=bind,source=deploy/images,target=/checks --mount=type=tmpfs,target=/dev/shm \
    python3 /checks/try_models.py ensemble_model gateway triton run
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
ENTRYPOINT ["gateway", "triton", "run"]
CMD ["--host=0.0.0.0"]


FROM wheels AS onnx-stripped
COPY --from=onnx-build /opt/gateway /opt/gateway
# ONNX Runtime's library for C programs is a second copy of what its Python module contains.
RUN find /opt/gateway -name '*.cpython-*.so' -exec strip --strip-debug {} + \
 && rm -r /opt/gateway/lib/python3*/site-packages/numpy/*/tests \
        /opt/gateway/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*


FROM ${PYTHON_IMAGE} AS triton-cpu-onnx
WORKDIR /app
RUN useradd --uid 1000 --create-home triton-server
COPY --from=onnx-stripped /opt/gateway /opt/gateway
COPY --from=fetched /var/cache/triton-image-gateway /var/cache/triton-image-gateway
COPY --from=model /app/onnx_models /app/triton_models
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/var/cache
USER 1000:1000
RUN --mount=type=bind,source=deploy/images,target=/checks --mount=type=tmpfs,target=/dev/shm \
    python3 /checks/try_models.py ensemble_model gateway triton run
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
ENTRYPOINT ["gateway", "triton", "run"]
CMD ["--host=0.0.0.0"]


FROM ${TRITON_IMAGE} AS triton
ARG PIP_INDEX_URL
COPY constraints.txt /opt/preprocessor/
# Into the image's own Python, because that is the one that Triton's Python backend embeds, whatever PYTHONPATH says. Its numpy
# is older than 2 and goes first: over it, pip would leave the files of two releases in one folder. --ignore-installed: what the
# distribution installed has no record by which pip could remove it. The imports at the end fail the build, not the first start,
# where a base image has another Python than the pinned packages are built for.
COPY --from=wheels /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip uninstall --yes --break-system-packages numpy \
 && python3 -m pip install -c /opt/preprocessor/constraints.txt --break-system-packages --ignore-installed \
        numpy opencv-python-headless pillow /wheels/exact_resize-*.whl \
 && python3 -c "import cv2, exact_resize, numpy, PIL"
# TensorRT's engines are kept here: docker-compose.yml has a volume for it.
RUN install --directory --owner=1000 --group=1000 /var/cache/tensorrt
# TorchScript runs in the image's own libtorch backend, so gateway_local/backends is not copied.
COPY --from=model /app/triton_models /models
# What sizes the models to the container when it starts: standard library only.
COPY gateway_local/__init__.py gateway_local/config_text.py gateway_local/sizing.py /opt/sized/gateway_local/
COPY gateway/machine /opt/sized/gateway/machine
COPY gateway_local/sized_triton.py /opt/sized/__main__.py
ENV PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
# Here, and not at the first start, it comes out whether the image's libtorch loads what the pinned torch has written.
RUN --mount=type=bind,source=deploy/images,target=/checks \
    python3 /checks/try_models.py ensemble_model python3 /opt/sized tritonserver --model-repository=/models \
        --model-control-mode=explicit --load-model=* --disable-auto-complete-config
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s --retries=3 \
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
COPY --from=gateway-stripped /opt/gateway /opt/gateway
WORKDIR /home/gateway
ENV GATEWAY_HOST=0.0.0.0 \
    GATEWAY_PORT=8080 \
    PATH=/opt/gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 1000:1000
# What was stripped loads, or the build fails here.
RUN python3 -c "import gateway.app, gateway.decoder.__main__, uvloop"
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ[\"GATEWAY_PORT\"]}/health/live', timeout=4)"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
