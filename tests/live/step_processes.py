"""The processes of a job's copies on this machine, for tests that kill them."""

import os
import signal
from pathlib import Path

from slurm_hadar.sandbox import processes


def _read(path):
    """Words and environment of a process; nothing when it is gone."""
    try:
        words = (path / "cmdline").read_bytes().split(b"\0")
        return words, set((path / "environ").read_bytes().split(b"\0"))
    except OSError:
        return [b""], set()


def _of_job(box, id_):
    wanted = {os.fsencode(f"SLURM_CONF={box.conf}"), f"SLURM_JOB_ID={id_}".encode()}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            words, environ = _read(path)
            if wanted <= environ:
                yield int(path.name), words, environ


def task(box, id_, rank):
    """The processes of one task: its guard first, then the copy."""
    found = []
    for pid, words, environ in _of_job(box, id_):
        ours = any(b"train_copies" in word for word in words) and b"python" in words[0]
        guard = b"--guard" in words
        # The launcher in the batch script is rank 0 of its own step.
        launcher = not guard and any(b"copies_launch" in word for word in words)
        if ours and f"SLURM_PROCID={rank}".encode() in environ and not launcher:
            found.append((not guard, pid))
    return [pid for _, pid in sorted(found)]


def copy(box, id_, rank):
    """The process that trains, once its guard has started it."""
    found: list[int] = []

    def there():
        found[:] = task(box, id_, rank)
        return len(found) == 2

    assert processes.wait_until(there, 60, 0.1), found
    return found[1]


def ignores(box, id_, number):
    """Whether a process of a job does not mind this signal."""
    for pid, _, _ in _of_job(box, id_):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")]
        if int(mask, 16) >> (number - 1) & 1:
            return True
    return False


def stop(pid):
    """SIGSTOP a process, and come back when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    assert processes.wait_until(
        lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 60, 0.001
    )


def srun(box, id_):
    """The main process of the srun that the launcher started."""
    for pid, words, _ in _of_job(box, id_):
        if words[0] == b"srun":
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            above, _ = _read(Path(f"/proc/{status[1]}"))
            if any(b"copies_launch" in word for word in above):
                return pid
    raise AssertionError("no srun of this job")


def dies_with_its_node(box, id_, node):
    """KILL all that runs of a job on a node, its slurmd first, as when the node loses power."""
    here = f"SLURMD_NODENAME={node}".encode()
    pids = {pid for pid, _, environ in _of_job(box, id_) if here in environ}
    above = [pid for pid in processes.steps(box.places) if pids & set(processes.descendants([pid]))]
    assert pids and above
    box.kill_slurmd(node)
    processes.kill_trees([*above, *pids])
