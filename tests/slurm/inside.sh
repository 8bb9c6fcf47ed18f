#!/bin/sh
# inside.sh FOLDER COMMAND…: runs COMMAND where /etc/slurm is FOLDER, for itself and its children
# alone. (Slurm's tools read /etc/slurm; SLURM_CONF does not reach the jobs of the plugin.)
set -eu
folder=$1
shift
exec unshare --mount --propagation private -- \
    sh -c 'mount --bind "$1" /etc/slurm && shift && exec "$@"' inside "$folder" "$@"
