#!/bin/sh
# status-slurm.sh ID: `running`, `success` or `failed`.
if ! answer=$(squeue --noheader --states=all --format=%T --jobs="$1" 2>&1); then
    case $answer in
    *"Invalid job id"*) answer= ;;
    *) # The controller does not answer: ask again later.
        echo running
        exit
        ;;
    esac
fi
# squeue forgets a job minutes after its end; sacct does not, where there is one.
state=$(printf '%s\n' "$answer" | grep -x '[A-Z_][A-Z_]*' | tail -n 1)
[ -n "$state" ] || state=$(sacct -X --noheader --format=State --jobs="$1" 2>/dev/null | head -n 1)
case $(echo "$state" | tr -d ' ') in
COMPLETED) echo success ;;
PENDING | CONFIGURING | RUNNING | COMPLETING | SUSPENDED | STOPPED | STAGE_OUT | SIGNALING | RESIZING | REQUEUE*)
    echo running
    ;;
'')
    echo "gradleak: Slurm no longer knows job $1, so it counts as failed; ask for a longer MinJobAge or for sacct." >&2
    echo failed
    ;;
*) echo failed ;;
esac
