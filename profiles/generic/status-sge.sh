#!/bin/sh
# status-sge.sh ID: `running`, `success` or `failed`. Ended jobs leave qstat and come into qacct,
# which can take some seconds.
if job=$(qstat -j "$1" 2>&1); then
    case $(qstat 2>/dev/null | awk -v id="$1" '$1 == id { print $5 }') in
    *E*)
        echo "gradleak: Grid Engine holds job $1 in an error state; see qstat -j $1, then qdel $1." >&2
        echo failed
        ;;
    *) echo running ;;
    esac
    exit
fi
case $job in
*"do not exist"*) ;;
*) # The master does not answer: ask again later.
    echo running
    exit
    ;;
esac
tries=0
until ended=$(qacct -j "$1" 2>/dev/null); do
    tries=$((tries + 1))
    if [ "$tries" -ge 10 ]; then
        echo "gradleak: Grid Engine has no record of job $1 (qacct), so it counts as failed." >&2
        echo failed
        exit
    fi
    sleep "${GRADLEAK_STATUS_SLEEP:-3}"
done
# `failed` and `exit_status` begin with a number; both are 0 for a job that went well.
if printf '%s\n' "$ended" | awk '$1 == "failed" || $1 == "exit_status" { if ($2 != 0) bad = 1; n++ } END { exit bad || n < 2 }'; then
    echo success
else
    echo failed
fi
