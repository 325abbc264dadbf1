#!/bin/sh
# slurm-hadar: tells each task of a managed job what the controller planned for it. What is printed
# here Slurm takes for commands, so only names of ours and plain values are. Ends with 0 always.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
job=${SLURM_JOB_ID:-}
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID:-}_$SLURM_ARRAY_TASK_ID
[ -f @EXCHANGE@/"plan.$job.json" ] || exit 0
timeout -k 1 @SECONDS@ @PYTHON@ -I -m slurm_hadar.plugins.on_node task-prolog --exchange @EXCHANGE@ --uid @UID@ </dev/null 2>/dev/null
exit 0
