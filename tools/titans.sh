#!/usr/bin/env bash
# Runs the titan recipe's tests with the TorchTitan that is not installed: of 0.2.2 and 0.3.0 the
# other one. Its environment, build/titans/VERSION, has that in front of the packages of $1.
#   KINDS="long or not long" tools/titans.sh .venv
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1")
. tools/beside.sh

installed=$("$venv/bin/python" -c 'from importlib import metadata; print(metadata.version("torchtitan"))')
case $installed in
0.2.*) version=0.3.0 packages="spmd_types==0.2.3 torch_checkpointing==0.1.1" ;;
*) version=0.2.2 packages="" ;;
esac
environment=build/titans/$version
if [ ! -e "$environment/.made" ]; then
    make_environment "$environment"
    # What they ask for besides is there already, in the versions that the tests run with.
    # shellcheck disable=SC2086 # the packages are words
    if ! install_into "$environment" --no-deps "torchtitan==$version" $packages; then
        echo "torchtitan $version cannot be installed here: its tests are skipped" >&2
        exit 0
    fi
    add_the_rest "$environment"
    touch "$environment/.made"
fi
echo "torchtitan $version (installed is $installed)"
tests() {
    "$environment/bin/python" -W ignore -m pytest -q -p no:cacheprovider -o faulthandler_timeout=0 -o timeout=600 "$@"
}
tests -m "$KINDS" tests/recipes/test_recipes_titan_*.py
if [[ $KINDS != long* ]]; then
    # A training, too: it is edited, held and goes on.
    tests -m long tests/recipes/test_recipes_titan_hold.py -k makes_the_step_again
fi
