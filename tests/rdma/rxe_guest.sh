#!/bin/bash
# Runs a command in a guest machine that has a software RDMA device (rxe0, RoCE v2 on a dummy network
# card): most kernels that tests run on have no RDMA at all.
#   rxe_guest.sh CACHE_FOLDER SECONDS COMMAND
# The guest sees this machine's files, read-only, with /tmp, /run and /dev/shm of its own. The status is
# the command's. Needs root, QEMU, busybox (static), cpio and kmod; Debian's kernel is downloaded once.
set -euo pipefail
cache=$1 seconds=$2 command=$3
mkdir -p "$cache"
if [ ! -e "$cache/ready" ]; then
    cd "$cache"
    rm -rf unpacked root
    image=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
    apt-get -qq download "$image" 2> /dev/null
    dpkg -x "$image"_*.deb unpacked
    rm -f "$image"_*.deb
    version=${image#linux-image-}
    depmod -b unpacked "$version"
    mkdir -p root/bin root/proc root/sys root/dev root/mnt root/modules
    cp "$(command -v busybox)" root/bin/busybox
    for module in virtio_pci 9pnet_virtio 9p crc32_generic crc32_pclmul rdma_rxe rdma_ucm dummy; do
        modprobe -S "$version" -d unpacked --show-depends "$module" | awk '$1 == "insmod" {print $2}'
    done | awk '!seen[$0]++' | while read -r file; do
        cp "$file" root/modules/
        basename "$file" >> root/module_list
    done
    cat > root/init <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for module in $($b cat /module_list); do $b insmod "/modules/$module"; done
how=trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000
$b mount -t 9p -o $how host /mnt || $b poweroff -f
for folder in proc sys dev; do $b mount -o move /$folder /mnt/$folder; done
for folder in tmp run; do $b mount -t tmpfs tmpfs /mnt/$folder; done
$b mkdir -p /mnt/dev/shm /mnt/dev/pts /mnt/tmp/order
$b mount -t tmpfs tmpfs /mnt/dev/shm; $b mount -t devpts devpts /mnt/dev/pts
$b mount -t 9p -o $how order /mnt/tmp/order
$b chroot /mnt /bin/bash /tmp/order/run.sh
echo "guest: status $?"
$b poweroff -f
INIT
    chmod +x root/init
    (cd root && find . | cpio -o -H newc --quiet | gzip -1) > initrd.gz
    cp unpacked/boot/vmlinuz-* vmlinuz
    rm -rf unpacked root
    touch ready
fi
order=$(mktemp -d)
trap 'rm -rf "$order"' EXIT
cat > "$order/run.sh" <<RUN
export PATH=$PATH HOME=/root PYTHONDONTWRITEBYTECODE=1
ip link set lo up
ip link add dummy0 type dummy 2> /dev/null
ip link set dummy0 up mtu 4200
ip addr add 192.0.2.1/24 dev dummy0
rdma link add rxe0 type rxe netdev dummy0
ulimit -l unlimited
$command
RUN
timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 2G -nic none \
    -nographic -no-reboot -kernel "$cache/vmlinuz" -initrd "$cache/initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=unstable" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -virtfs "local,path=$order,mount_tag=order,security_model=none,readonly=on" \
    < /dev/null | tr -d '\r' | tee "$order/log" || true
status=$(sed -n 's/^guest: status //p' "$order/log")
exit "${status:-99}"
