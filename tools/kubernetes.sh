#!/bin/sh
# Builds the programs of a Kubernetes 1.20 that `make system` tests against, which no package has: from
# Debian 12's source package. Takes root, apt-get, 2.5 GB and some minutes; kept for the next time.
#   tools/kubernetes.sh [FOLDER]
set -eu
kept=${1:-/var/cache/monarch-kubernetes}
[ ! -x "$kept/kubelet" ] || exit 0
if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
    echo "building Kubernetes needs apt-get, and root" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq install -y --no-install-recommends golang-go golang-github-modern-go-reflect2-dev \
    dpkg-dev rsync jq make gcc libc6-dev > /dev/null
work=$(mktemp -d /var/tmp/monarch-kubernetes-XXXXXX)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
# Its own lists: the machine's settings may have no sources of packages, and stay as they are.
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keys] http://deb.debian.org/debian bookworm main" > sources.list
mkdir -p lists/partial
get() {
    apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/nonexistent \
        -o Dir::State::Lists="$work/lists" -o APT::Sandbox::User=root "$@"
}
get update
get source --download-only kubernetes
tree=$work/go/src/k8s.io/kubernetes
mkdir -p "${tree%/*}"
dpkg-source -x kubernetes_*.dsc "$tree" > /dev/null 2>&1
# Its copy of reflect2 crashes when it is built with Go 1.18 or later; Debian's own does not.
copy=$tree/vendor/github.com/modern-go/reflect2
rm -f "$copy"/*.go "$copy"/*.s
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.go \
    /usr/share/gocode/src/github.com/modern-go/reflect2/*.s "$copy/"
cd "$tree"
export GOPATH="$work/go" GO111MODULE=off GOPROXY=off CGO_ENABLED=0 HOME="$work"
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet" \
    GOFLAGS=-trimpath GOLDFLAGS="-s -w" KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian \
    KUBE_GIT_TREE_STATE=clean KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
mkdir -p "$kept"
cp _output/local/bin/linux/amd64/kube* "$kept/"
