#!/bin/sh
# Boot systemd as process 1 of a machine that is this one's copy on write, in namespaces of its own:
#   boot.sh watch SCRATCH NAME [PATH...]     in a private mount namespace: boots, waits, clears up
#   boot.sh enter SCRATCH NAME [PATH...]     in a child of that, which becomes `unshare`, the machine's parent
#   boot.sh root SCRATCH NAME [PATH...]      in a child of that: process 1 of the machine
# SCRATCH is a directory to be used up, NAME that of the machine's cgroup, PATH... what lies on other file systems than /
# and must be seen inside. MACHINE_ROOT in the environment is another root directory to boot than this machine's. The machine lives until the end of standard input, so that it ends with the holder of the
# other end, however that ends. Mounts are made in namespaces that die with the machine: there is nothing to undo.
set -eu
stage=$1 scratch=$2 name=$3

copy_on_write() { # LOWER INDEX TARGET
    mkdir -p "$scratch/layers/$2/upper" "$scratch/layers/$2/work" "$3"
    mount -t overlay -o "lowerdir=$1,upperdir=$scratch/layers/$2/upper,workdir=$scratch/layers/$2/work" overlay "$3"
}

if [ "$stage" = watch ]; then
    shift
    # Some hosts run cgroup v1, some v2 without write access at the usual place; a mount of our own is the same anywhere.
    mkdir "$scratch/cgroup"
    mount -t cgroup2 cgroup2 "$scratch/cgroup"
    mkdir "$scratch/cgroup/$name"
    exec 3<&0 </dev/null
    sh "$0" enter "$@" 3<&- &
    machine=$!
    {
        read -r _ <&3 || :
        # With process 1, everything in the namespace goes; `unshare` ends when all of it is gone.
        [ -e "$scratch/ended" ] || kill -KILL "$(cat "$scratch/leader")" || kill -KILL "$machine"
    } 2>/dev/null &
    holder=$!
    status=0
    wait "$machine" || status=$?
    echo "$status" >"$scratch/ended"
    wait "$holder" || :
    # `unshare` that is killed before its child has asked for its own end with it leaves the child behind.
    [ ! -e "$scratch/cgroup/$name/cgroup.kill" ] || echo 1 >"$scratch/cgroup/$name/cgroup.kill"
    tries=0
    until find "$scratch/cgroup/$name" -depth -type d -delete 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || exit 1
        sleep 0.02
    done
    umount "$scratch/cgroup"
    rm -r "$scratch"
    exit 0
fi

if [ "$stage" = enter ]; then
    shift
    echo $$ >"$scratch/cgroup/$name/cgroup.procs"
    # A cgroup namespace made from here on has this cgroup as its root.
    exec unshare --pid --fork --kill-child --mount --propagation private --uts --ipc --net --cgroup \
        sh "$0" root "$@"
fi

# This /proc is still the host's: it knows us by the pid that the host uses.
read -r pid _ </proc/self/stat
echo "$pid" >"$scratch/leader"

shift 3
mkdir "$scratch/layers"
mount -t tmpfs -o mode=755 tmpfs "$scratch/layers"
mkdir "$scratch/layers/root"
copy_on_write "${MACHINE_ROOT:-/}" rootfs "$scratch/layers/root"
cd "$scratch/layers/root"

mount -t proc -o nosuid,nodev,noexec proc proc
# As process 1, systemd would raise limits of the kernel that all namespaces share.
for path in proc/sys proc/sysrq-trigger; do
    [ -e "$path" ] || continue
    mount --bind "$path" "$path"
    mount -o remount,bind,ro "$path"
done
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run

# No console and no kernel log: nothing of the host's to print on or to read from.
mount -t tmpfs -o mode=755,nosuid tmpfs dev
for node in null zero full random urandom tty; do
    : >"dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,nosuid,noexec devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

# Last, since they may lie under one of these mounts.
index=0
for path in "$@"; do
    index=$((index + 1))
    copy_on_write "$path" "$index" "$scratch/layers/root$path"
done

# What the host's administrator enabled, mounts or generates has no business here, and half of it would wait for
# hardware. In particular no systemd-tmpfiles: at boot it empties /tmp, where a checkout or its interpreter may live.
rm -rf etc/systemd/system etc/sysusers.d usr/lib/systemd/system-generators usr/lib/systemd/system/*.wants
mkdir -p etc/systemd/system/sysinit.target.wants etc/systemd/journald.conf.d
ln -s /usr/lib/systemd/system/systemd-journald.service etc/systemd/system/sysinit.target.wants/
ln -s /dev/null etc/systemd/system/systemd-journald-audit.socket
: >etc/fstab
echo 0123456789abcdef0123456789abcdef >etc/machine-id
cat >etc/systemd/journald.conf.d/machine.conf <<'CONF'
[Journal]
Storage=volatile
Audit=no
RateLimitIntervalSec=0
CONF
cat >etc/systemd/system/default.target <<'CONF'
[Unit]
Requires=basic.target multi-user.target
After=basic.target multi-user.target
CONF

mkdir run/host
pivot_root . run/host
umount --lazy /run/host
rmdir /run/host
exec env -i container=mpsguard-test /lib/systemd/systemd --system --log-target=journal
