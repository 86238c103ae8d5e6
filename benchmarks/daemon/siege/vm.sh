#!/bin/sh
# Runs a command in a virtual machine that has this machine's files (what it writes is lost) and all
# controllers in cgroup v2, such as `memory`, which a machine with cgroup v1 beside it lacks:
#
#   apt-get install qemu-system-x86 busybox-static
#   apt-get download linux-image-6.1.0-50-cloud-amd64; dpkg -x linux-image-*.deb kernel
#   benchmarks/daemon/siege/vm.sh kernel .venv/bin/pytest tests/carmad/attempt/test_supervisor.py -k memory
#
# For root, from the checkout, best with /dev/kvm; ACCEL=tcg emulates, where that does not work: then,
# carmad takes minutes to start. The command's output is the console's.
set -eu
kernel=$(realpath "$1"); shift
work=$(mktemp -d); trap 'cat "$work/virtiofsd.log"; rm -rf "$work"' EXIT
mkdir -p "$work/in/bin" "$work/in/modules" "$work/in/proc" "$work/in/sys" "$work/in/dev" \
    "$work/in/low" "$work/in/up" "$work/in/new"
cp "$(command -v busybox)" "$work/in/bin/busybox"
for module in drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_modern_dev \
    drivers/virtio/virtio_pci_legacy_dev drivers/virtio/virtio_pci fs/fuse/fuse fs/fuse/virtiofs \
    fs/overlayfs/overlay; do
    cp "$kernel"/lib/modules/*/kernel/$module.ko "$work/in/modules"
done
cat > "$work/in/init" <<'EOF'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc none /proc; $b mount -t sysfs none /sys; $b mount -t devtmpfs none /dev
for each in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci fuse virtiofs \
    overlay; do
    $b insmod /modules/$each.ko
done
$b mount -t virtiofs files /low
$b mount -t tmpfs none /up; $b mkdir /up/upper /up/work
$b mount -t overlay -o lowerdir=/low,upperdir=/up/upper,workdir=/up/work none /new
for each in dev proc sys; do $b mount --move /$each /new/$each; done
$b cp /command /new/carma-command
exec $b switch_root /new /bin/sh /carma-command
EOF
chmod +x "$work/in/init"
{
    cat <<'EOF'
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
umask 022
for each in /run /tmp /dev/shm /dev/pts; do mkdir -p $each; done
mount -t tmpfs none /run; mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=1777 none /dev/shm; mount -t devpts none /dev/pts
mount --make-rshared /
mount -t cgroup2 none /sys/fs/cgroup
mount -t fusectl none /sys/fs/fuse/connections
for each in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo +$each > /sys/fs/cgroup/cgroup.subtree_control
done
ip link set lo up
EOF
    printf 'cd "%s"\n' "$PWD"
    for word; do printf "'%s' " "$word"; done
    printf '\necho "exit status $?"\nbusybox reboot -f\n'
} > "$work/in/command"
(cd "$work/in" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > ../initrd)
/usr/lib/qemu/virtiofsd --socket-path="$work/files" -o source=/ -o cache=auto -o sandbox=chroot \
    > "$work/virtiofsd.log" 2>&1 &
while [ ! -S "$work/files" ]; do sleep 0.1; done
qemu-system-x86_64 -accel "${ACCEL:-kvm}" -cpu max -smp 2 -m 3G -nographic -no-reboot -nic none \
    -object memory-backend-memfd,id=mem,size=3G,share=on -numa node,memdev=mem \
    -chardev "socket,id=files,path=$work/files" -device vhost-user-fs-pci,chardev=files,tag=files \
    -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1" < /dev/null
wait
