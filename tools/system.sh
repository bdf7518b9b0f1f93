#!/bin/sh
# Installs what `make system` tests against: OpenSSH, Slurm, network namespaces. Debian and its kin, as
# root. Nothing is started or configured: tests start their own, with settings of their own.
set -eu
# Where sshd of root confines what speaks to strangers; elsewhere a service makes it at boot.
[ "$(id -u)" != 0 ] || mkdir -p -m 755 /run/sshd
missing=
for program in sshd:openssh-server ssh:openssh-client rsync:rsync ip:iproute2 slurmctld:slurm-wlm munged:munge \
    qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod chromium:chromium; do
    PATH="$PATH:/usr/sbin" command -v "${program%%:*}" > /dev/null || missing="$missing ${program#*:}"
done
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
# shellcheck disable=SC2086
apt-get -qq install -y --no-install-recommends $missing > /dev/null ||
    echo "cannot install$missing: apt-get fails. Tests that need them are skipped" >&2
