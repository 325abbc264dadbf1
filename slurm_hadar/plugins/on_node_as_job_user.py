"""The sampler's entry point in prolog and epilog, started as root:
``python -m slurm_hadar.plugins.on_node_as_job_user``.

The sampler may be outside of the job's cgroup, where foreign code would see all GPUs of the node
and outlive the job. So no process of the job's user may attach to it, from its first instruction
on. After an exec as that user any of them may, until the program has closed itself. Therefore root
starts this program, and it becomes the user without an exec. Before that only this file runs, with
modules of Python's own. Where a step fails it ends with 0, and nothing more runs as root.
"""

import ctypes
import os
import pwd
import sys

_PR_SET_DUMPABLE = 4


def become(uid: int, gid: int) -> None:
    """Drop root for good, with no moment in which another process of ``uid`` may attach.

    The kernel lets a process attach where the real, effective and saved UID are all its own and
    the target is dumpable. A change of an effective ID sets that to fs.suid_dumpable, which may be
    1. So the effective UID goes first, while the saved one is still root's; then the process is
    closed; the last step changes no effective ID and leaves it closed.

    Raises OSError where a step is refused.
    """
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(-1, uid, -1)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise OSError("the user of the job was not taken on")


def main() -> int:
    """Entry point; 0 always."""
    try:
        if os.getuid() == 0:
            uid = int(os.environ["SLURM_JOB_UID"])
            # Slurm's prolog has no SLURM_JOB_GID before 22.05.
            group = os.environ.get("SLURM_JOB_GID")
            gid = int(group) if group else pwd.getpwuid(uid).pw_gid
            if min(uid, gid) < 0:
                return 0
            become(uid, gid)
    except (OSError, ValueError, KeyError, AttributeError, OverflowError):
        return 0
    from slurm_hadar.plugins import on_node

    return on_node.main()


if __name__ == "__main__":
    sys.exit(main())
