#!/bin/sh
# Installs torch with the pip given as $1: the CPU build where there is no NVIDIA GPU.
# The index's plain torch for Linux brings several gigabytes of CUDA along, so without a GPU
# the CPU build is taken from whichever source has it.
set -eu
pip=$1
requirement=${TORCH_REQUIREMENT:-torch==2.13.0}
python=$(dirname "$pip")/python

if "$python" -c 'import torch' 2>/dev/null; then
    exit 0
fi
if nvidia-smi -L >/dev/null 2>&1; then
    echo "A GPU is here: installing $requirement with CUDA."
    exec "$pip" install --quiet "$requirement"
fi
found=$("$pip" install --quiet --dry-run --no-deps --report - "$requirement" 2>/dev/null |
    "$python" -c 'import json,sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' 2>/dev/null || true)
case $found in
*+cpu)
    echo "No GPU here: installing torch $found."
    exec "$pip" install --quiet "$requirement"
    ;;
esac
echo "No GPU here: installing the CPU build of $requirement."
"$pip" install --quiet uv
if "$(dirname "$pip")/uv" pip install --quiet --python "$python" --torch-backend cpu "$requirement"; then
    exit 0
fi
echo "No CPU build could be had; installing the default one, which runs on a CPU too." >&2
exec "$pip" install --quiet "$requirement"
