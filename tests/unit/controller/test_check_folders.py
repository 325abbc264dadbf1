"""A state folder on a network file system is warned of."""

from pathlib import Path

import pytest

from slurm_hadar.controller.checks.check_folders import disk_finding

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /home rw - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/local rw - xfs /dev/sdb1 rw
32 22 0:31 / /mnt/a\040b rw master:2 - fuse.sshfs host:/x rw
33 22 0:32 / /scratch rw - ext4 /dev/sdc rw
34 22 0:33 / /scratch rw - lustre mgs@tcp:/s rw
nonsense
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/slurm-hadar", ""),
        ("/home/ann/state", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/ann", ""),
        ("/home/local/state", ""),
        ("/mnt/a b/state", "fuse.sshfs"),
        # What was mounted last covers the one below.
        ("/scratch/state", "lustre"),
    ],
)
def test_only_a_network_file_system_is_warned_of(folder, kind):
    found = disk_finding(Path(folder), MOUNTS)
    assert (found is not None and f"({kind})" in found.what) == bool(kind)
    assert found is None or (found.level == "warning" and "site.state_dir" in found.cure)


def test_without_a_list_of_mounts_nothing_is_claimed():
    assert disk_finding(Path("/home"), "") is None
