#!/bin/sh
# slurm-hadar: begins to sample the GPUs of a managed job. Ends with 0 always, within seconds:
# a Prolog that fails drains its node. On a node without a GPU it says and does nothing.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
case ${SLURM_JOB_COMMENT:-} in *'[hadar1'*) ;; *) exit 0 ;; esac
@MARK@
[ -n "${SLURM_JOB_GPUS:-}" ] && [ -e /dev/nvidiactl ] || exit 0
cd / || exit 0
# Root starts it and it becomes the job's user without an exec: after one, another process of that
# user could attach to it and act outside of the job's cgroup.
timeout -k 1 @SECONDS@ @PYTHON@ -I -m slurm_hadar.plugins.on_node_as_job_user @STEP@ --exchange @EXCHANGE@ </dev/null >/dev/null 2>&1
exit 0
