#!/bin/sh
# status-pbs.sh ID: `running`, `success` or `failed`. PBS keeps ended jobs in its history (qstat -x).
if ! job=$(qstat -x -f "$1" 2>&1); then
    case $job in
    *"Unknown Job"*)
        echo "gradleak: PBS no longer knows job $1, so it counts as failed; it must keep a history (job_history_enable)." >&2
        echo failed
        ;;
    *) echo running ;; # The server does not answer: ask again later.
    esac
    exit
fi
field() { printf '%s\n' "$job" | sed -n "s/^ *$1 = *//p" | head -n 1; }
case $(field job_state) in
F | C | X)
    # A job that was deleted before it began has no exit status.
    if [ "$(field '[Ee]xit_status')" = 0 ]; then echo success; else echo failed; fi
    ;;
*) echo running ;;
esac
