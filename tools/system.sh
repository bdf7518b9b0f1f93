#!/bin/sh
# Installs what `make system` tests against: OpenSSH, Slurm, network namespaces, the parts of a
# Kubernetes that packages have, a guest with RDMA, a browser; by apt, on Debian and its kin, as root.
# Ray and the SDKs of clouds by pip, into the virtual environment that it is given (.venv).
# Nothing is started or configured: tests start their own, with settings of their own.
set -eu
venv=${1:-.venv}
# The clouds' SDKs apart from each other and from the rest: they want other versions of the same.
# A folder is complete when its name is.
bring() {
    [ ! -d "$venv/sdks/$1" ] || return 0
    "$venv/bin/pip" install --quiet --target "$venv/sdks/$1.part" "$2" > /dev/null 2>&1 &&
        mv "$venv/sdks/$1.part" "$venv/sdks/$1" || {
        rm -rf "$venv/sdks/$1.part"
        echo "cannot install $2: pip fails. Tests that need it are skipped" >&2
    }
}
"$venv/bin/python" -c "import ray" 2> /dev/null || "$venv/bin/pip" install --quiet 'ray>=2.9' ||
    echo "cannot install Ray: pip fails. Tests that need it are skipped" >&2
bring lightning lightning-sdk
bring sky skypilot
# Where sshd of root confines what speaks to strangers; elsewhere a service makes it at boot.
[ "$(id -u)" != 0 ] || mkdir -p -m 755 /run/sshd
missing=
for program in sshd:openssh-server ssh:openssh-client rsync:rsync ip:iproute2 slurmctld:slurm-wlm munged:munge \
    nsenter:util-linux openssl:openssl etcd:etcd-server kubectl:kubernetes-client containerd:containerd runc:runc \
    qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod chromium:chromium; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${program%%:*}" > /dev/null || missing="$missing ${program#*:}"
done
[ -d /usr/lib/cni ] || missing="$missing containernetworking-plugins"
# What reads memory by RDMA, in the guest that QEMU runs.
[ -e /usr/lib/python3/dist-packages/pyverbs ] || missing="$missing python3-pyverbs ibverbs-providers"
[ -n "$missing" ] || exit 0
if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
    echo "cannot install$missing: that needs apt-get, and root. Tests that need them are skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# Where services could be started, these are not to be.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
fi
apt-get -qq update || true  # What it knows may do.
# One that is not to be had does not keep the others away.
# shellcheck disable=SC2086
apt-get -qq install -y --no-install-recommends $missing > /dev/null 2>&1 ||
    for package in $missing; do
        apt-get -qq install -y --no-install-recommends "$package" > /dev/null ||
            echo "cannot install $package: apt-get fails. Tests that need it are skipped" >&2
    done
