#!/usr/bin/env bash
# For each torch: imports all modules, runs the tests of pure code and of tensors, and each recipe
# once. Its environment, build/torches/VERSION, has that torch in front of the packages of $1.
#   tools/torches.sh .venv "2.11.0 2.14.1" tests/mesh tests/core ...
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1") versions=$2
shift 2
. tools/beside.sh

for version in $versions; do
    environment=build/torches/$version
    if [ ! -e "$environment/.made" ]; then
        make_environment "$environment"
        install_into "$environment" "torch==$version"
        add_the_rest "$environment"
        touch "$environment/.made"
    fi
    python=$(pwd)/$environment/bin/python
    echo "torch $("$python" -W ignore -c 'import torch; print(torch.__version__)')"
    "$python" -W ignore tools/import_all.py
    "$python" -m pytest -q -p no:cacheprovider -o faulthandler_timeout=0 "$@"
    "$python" -W ignore tools/run_recipes.py
done
