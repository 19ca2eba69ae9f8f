#!/bin/sh
# Build NVIDIA's libtorch backend for the Triton of `gateway up`, on the CPU, against the torch of a virtual environment:
#
#     bench/libtorch_backend.sh FOLDER        # writes FOLDER/pytorch/libtriton_pytorch.so
#     python -m bench.backends FOLDER         # and measures it beside the Python-based one
#
# It takes git, g++ 12 or newer and a minute. PYTHON names the interpreter that has torch, SOURCES a folder where the
# repositories are already. See docs/explanation/libtorch-backend.md.
set -eu

RELEASE=r24.10  # Triton 2.51, the one that `gateway triton fetch` brings
folder=${1:?"usage: $0 FOLDER"}
python=${PYTHON:-python3}
sources=${SOURCES:-$folder/sources}
objects=$folder/objects
mkdir -p "$sources" "$objects" "$folder/pytorch"

for repository in pytorch_backend backend core common; do
    [ -d "$sources/$repository" ] ||
        git clone --quiet --depth 1 --branch $RELEASE \
            "https://github.com/triton-inference-server/$repository.git" "$sources/$repository"
done
# Headers alone; its last release, of 2016, is too old for the compilers of today.
[ -d "$sources/rapidjson" ] || git clone --quiet --depth 1 https://github.com/Tencent/rapidjson.git "$sources/rapidjson"

torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
python_headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
backend=$sources/pytorch_backend/src

for source in "$sources"/backend/src/backend_*.cc "$sources"/common/src/async_work_queue.cc \
    "$sources"/common/src/thread_pool.cc "$sources"/common/src/error.cc "$backend"/*.cc; do
    echo "compiling ${source##*/}"
    # No TRITON_ENABLE_GPU: neither CUDA's headers nor a GPU are needed, and KIND_GPU is refused.
    g++ -std=c++20 -O2 -fPIC -w -DTRITON_ENABLE_STATS=1 -c "$source" -o "$objects/$(basename "$source" .cc).o" \
        -I"$sources/backend/include" -I"$sources/core/include" -I"$sources/common/include" \
        -I"$sources/rapidjson/include" -I"$python_headers" \
        -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include"
done
# Triton's own functions stay undefined: the server that loads the library has them.
g++ -shared -o "$folder/pytorch/libtriton_pytorch.so" "$objects"/*.o \
    -Wl,--no-as-needed "-Wl,--version-script,$backend/libtriton_pytorch.ldscript" \
    -L"$torch/lib" -ltorch_cpu -lc10 "-Wl,-rpath,$torch/lib"
echo "wrote $folder/pytorch/libtriton_pytorch.so"
