#!/bin/bash
# Writes the report of a job that recorded into dsprof-JOBID in its folder. It never changes the job's exit code.
# In a job script: trap 'deploy/slurm/epilogue.sh' EXIT. As TaskEpilog: give its path in slurm.conf.
set -u

folder="${DSPROF_OUT:-${SLURM_SUBMIT_DIR:-.}/dsprof-${SLURM_JOB_ID:?}}"
[ -d "$folder" ] || exit 0
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0

# One of the logs says whether Slurm ended the job, as at its time limit.
while read -r log; do
    if grep -qs ' CANCELLED AT ' "$log"; then
        set -- "$log"
    fi
done < <(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Std\(Out\|Err\)=//p')

dsprof report "$folder" "$@" -o "$folder/report.html" --quiet || true
dsprof hang "$folder" -o "$folder/hang.txt" --quiet || true
exit 0
