#!/bin/sh
# Installs what tests/test_slurm.py needs (Debian's slurm-wlm and munge) where it may; elsewhere it
# says why not, and the tests are skipped with that reason. Nothing of it is started.
set -u
missing=
for command in munged slurmctld slurmd sbatch srun squeue unshare; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || missing="$missing $command"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "tests on Slurm are skipped: only root may install slurm-wlm and munge (missing:$missing)"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "tests on Slurm are skipped: no apt-get to install slurm-wlm and munge (missing:$missing)"
    exit 0
fi
install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        slurm-wlm munge util-linux >"$log" 2>&1
}
log=$(mktemp)
if ! install && ! { apt-get update -qq >"$log" 2>&1 && install; }; then
    echo "tests on Slurm are skipped: apt-get could not install slurm-wlm and munge:"
    tail -n 3 "$log"
fi
rm -f "$log"
