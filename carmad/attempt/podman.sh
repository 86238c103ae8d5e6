# Whatever the user's environment says, podman's processes are the job's own, in the job's cgroup.
# With the session bus, `podman start` would ask the user's systemd for a scope, where the job's
# limits do not hold, and which ends with the user's last login.
# `create` first, so that what it says tells why there is no container. The shell gets the
# job's SIGTERM until there is a program to get it. `set -m`: or the program would ignore SIGINT.
fail() { printf '%s\n' "$@" >&9; exit 127; }
podman=("$1" --remote=false --cgroup-manager=cgroupfs) image=$2 name=$3 gpus=$4; shift 4
export DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent
for gpu in $gpus; do
  grep -qsRF -e "$gpu" /etc/cdi /var/run/cdi || fail \
    "containers cannot use $gpu: no CDI specification of this server names it" \
    "ask an administrator to run: nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
done
trap '"${podman[@]}" rm --force --volumes --time=0 --ignore "$name" >/dev/null 9>&-; exit 143' TERM
said=$("${podman[@]}" create --name="$name" "$@" 2>&1 >/dev/null 9>&-) || {
  printf '%s\n' "$said" >&2
  [[ $said != */etc/subuid* ]] || fail "podman has no user ids for containers of $USER" \
    "ask an administrator to give $USER a range in /etc/subuid and /etc/subgid (usermod)"
  [[ $said != *"image not known"* ]] || fail "$USER has no image $image on this server" \
    "podman pull $image, then carma requeue $CARMA_JOB_ID"
  fail "podman cannot make the container: ${said##*$'\n'}" \
    "all that it said is in the job's log"
}
exec 9>&-
set -m
"${podman[@]}" start --attach "$name" &
exec 2>/dev/null
wait $!
