#!/bin/sh
# slurm-hadar: tells each task of a managed job what the controller planned for it. What is printed
# here Slurm takes for commands, so only names of ours and plain values are. Ends with 0 always.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
# Only for a managed job is the exchange folder touched, which may hang: hbatch and job_submit leave
# HADAR_SIGNAL in its environment, and the prolog a file on this node.
if [ -z "${HADAR_SIGNAL:-}${HADAR_EXCHANGE:-}" ] && [ ! -e @MARKS@/"${SLURM_JOB_ID:-none}" ]; then
  case ,@OPTIN@, in *,"${SLURM_JOB_PARTITION:-none}",*) ;; *) exit 0 ;; esac
fi
timeout -k 1 @SECONDS@ @PYTHON@ -I -m slurm_hadar.plugins.on_node task-prolog --exchange @EXCHANGE@ --uid @UID@ </dev/null 2>/dev/null
exit 0
