#!/usr/bin/env bash
# For each of the other Pythons that are promised: imports all modules, and runs the tests of pure
# code, in an environment without torch. One that is not on this machine is passed over, and named.
#   tools/pythons.sh "3.10 3.12 3.13" tests/mesh tests/wire ...
set -euo pipefail
cd "$(dirname "$0")/.."
versions=$1
shift

# A Python by its version: on the PATH, or one that pyenv has.
find_python() {
    local root candidate
    root=$(pyenv root 2>/dev/null || echo "$HOME/.pyenv")
    for candidate in "python$1" "$root/versions/$1".*/bin/python3; do
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            echo "$candidate"
            return
        fi
    done
}

for version in $versions; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "Python $version: skipped, it is not on this machine"
        continue
    fi
    venv=build/pythons/$version
    "$python" -m venv "$venv"
    "$venv/bin/python" tools/install.py --says "what Python $version needs" --editable '.[debug,observe]' \
        'pytest>=8.2' 'pytest-timeout>=2.3' 'pytest-xdist>=3.8' 'hypothesis>=6.100' psutil
    "$venv/bin/python" tools/import_all.py
    "$venv/bin/python" -m pytest -n 2 -q -o faulthandler_timeout=0 -p no:cacheprovider "$@"
done
