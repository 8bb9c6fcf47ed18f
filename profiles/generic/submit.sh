#!/bin/sh
# submit.sh GPUS OPTION COMMAND… JOBSCRIPT: runs COMMAND with OPTION in the place of @GPU@, or with
# nothing there if GPUS is 0, and prints the job's id alone, as Snakemake wants it.
set -eu
gpus=$1
option=$2
shift 2
[ "$gpus" -gt 0 ] || option=
for argument do
    shift
    case $argument in
    @GPU@)
        # An option of its own; its words are split.
        set -- "$@" $option
        ;;
    *@GPU@) set -- "$@" "${argument%@GPU@}$option" ;;
    *) set -- "$@" "$argument" ;;
    esac
done
mkdir -p results/logs/cluster
answer=$("$@")
# LSF says `Job <12> is submitted to queue <normal>.`; sbatch adds `;cluster` where there are several.
printf '%s\n' "$answer" | sed -n -e 's/^Job <\([0-9]*\)>.*/\1/' -e 's/;.*//' -e '/^[0-9]/p'
