# To be sourced: environments that have some other packages than the project's own, and else its.

# An environment in the folder $1, without packages.
make_environment() {
    [ -x "$1/bin/python" ] || "$venv/bin/python" -m venv --without-pip "$1"
}

# What the project's environment has is found in $1 behind what $1 has itself.
add_the_rest() {
    local here there
    here=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    there=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$there')" > "$here/zz_the_rest.pth"
}

# Installs the packages that follow into the environment $1, which has no pip.
install_into() {
    local target=$1
    shift
    "$venv/bin/python" tools/install.py --into "$target/bin/python" "$@"
}
