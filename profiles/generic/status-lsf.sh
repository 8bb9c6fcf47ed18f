#!/bin/sh
# status-lsf.sh ID: `running`, `success` or `failed`.
answer=$(bjobs -noheader -o stat "$1" 2>&1)
case $answer in
*"is not found"*)
    echo "gradleak: LSF no longer knows job $1, so it counts as failed; ask for a longer CLEAN_PERIOD." >&2
    echo failed
    exit
    ;;
esac
case $(printf '%s\n' "$answer" | grep -x '[A-Z]*' | tail -n 1) in
DONE) echo success ;;
EXIT | ZOMBI) echo failed ;;
*) echo running ;; # Also when LSF does not answer: ask again later.
esac
