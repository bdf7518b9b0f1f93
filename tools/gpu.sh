#!/bin/sh
# Makes a folder for a machine with GPUs and without a network, in which `make gpu`'s tests run.
#
#     tools/gpu.sh FOLDER     of the commit that is checked out, and what it needs from pip; TORCHTITAN=0.3.0 brings that one
#
# What the machine has to have: Linux on x86-64, Python 3.10 to 3.13 with pip, as PYTHON=3.12 (the default) says it
# here, and with it torch (2.6 or newer, built with CUDA), numpy, scikit-learn, pandas and pyarrow, which are too large to
# bring; a driver of NVIDIA's. No compiler: what needs one is skipped. On it:
#
#     FOLDER/run.sh                         the tests marked gpu, and their figures as JSON lines
#     FOLDER/run.sh -k memory               some of them: what pytest takes
#     FOLDER/run.sh --benchmark [memory]    benchmarks/gpu.py alone
#
# It installs into a temporary folder (KEEP=folder names one that is used again), never into the machine's Python.
set -eu
[ $# -eq 1 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2; }
source=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-3.12}
pip=${PIP:-python3 -m pip}
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ -z "$(ls -A "$folder")" ] || { echo "$folder is not empty: name another folder" >&2; exit 1; }
mkdir "$folder/wheels" "$folder/project"
# The commit, and not what lies about: a wheel of it, and what tests and benchmarks read beside it.
git -C "$source" archive HEAD | tar -x -C "$folder/project"
$pip wheel --quiet --no-deps --wheel-dir "$folder/wheels" "$folder/project"
titan=${TORCHTITAN:-0.2.2} with_titan=
case $titan in 0.3.*) with_titan="spmd_types==0.2.3 torch_checkpointing==0.1.1" ;; esac
platforms=
for tag in manylinux_2_28 manylinux_2_17 manylinux2014 manylinux_2_12 manylinux2010 manylinux_2_5 manylinux1; do
    platforms="$platforms --platform ${tag}_x86_64"
done
# shellcheck disable=SC2086
$pip download --quiet --no-deps --only-binary=:all: --python-version "$python" --implementation cp $platforms \
    --dest "$folder/wheels" \
    pyzmq cloudpickle msgspec xxhash watchfiles anyio idna click rich markdown-it-py mdurl pygments tomli \
    backports.zstd nvidia-ml-py safetensors \
    "torchtitan==$titan" $with_titan tyro docstring-parser shtab typeguard torchdata tokenizers fsspec datasets dill multiprocess \
    'torchft>=0.2,<0.3' opentelemetry-api opentelemetry-sdk opentelemetry-proto opentelemetry-semantic-conventions \
    opentelemetry-exporter-otlp-proto-http opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-otlp-common \
    opentelemetry-exporter-http-transport googleapis-common-protos protobuf requests einops \
    prompt_toolkit wcwidth py-spy psutil pytest pytest-timeout pluggy iniconfig packaging hypothesis sortedcontainers
cat > "$folder/run.sh" << 'RUN'
#!/bin/sh
# Installs what lies beside this into a folder of its own, and runs the tests marked gpu there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
kept=${KEEP:-}
base=${kept:-$(mktemp -d)}
mkdir -p "$base"
# What Python compiles of the machine's packages stays out of them: tests refuse to write there.
export PYTHONPYCACHEPREFIX="$base/pycache"
[ -n "$kept" ] || trap 'rm -rf "$base"' EXIT
if [ ! -e "$base/is_installed" ]; then
    # What the machine has comes first: its torch was built with it.
    "$python" -m pip install --quiet --no-index --no-deps --no-cache-dir --no-compile --target "$base/site" \
        "$here"/wheels/*.whl
    cp -r "$here/project" "$base/project"
    "$python" -m compileall -q "$base"/site/monarch "$base"/site/monarch_* || true
    touch "$base/is_installed"
fi
export PYTHONPATH="$base/site" PATH="$base/site/bin:$PATH" HOME="$base/home"
mkdir -p "$HOME"
cd "$base/project"
"$python" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
if [ "${1:-}" = --benchmark ]; then
    shift
    exec "$python" benchmarks/gpu.py "$@"
fi
"$python" -m pytest -m gpu -p no:cacheprovider -o timeout=600 -o faulthandler_timeout=0 tests/gpu tests/rdma "$@"
RUN
chmod +x "$folder/run.sh"
size=$(du -sm "$folder" | cut -f1)
echo "$folder: $size MiB. On the machine: $folder/run.sh"
[ "$size" -le 64 ] || echo "that is more than 64 MiB, which some ways to such machines allow" >&2
