"""A GPU that is given out in parts (gres/shard) is no place for a job that asks for a whole one."""

import threading

import pytest

from slurm_hadar.config import load
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LAYOUT = Layout((NodeGroup("v", 1, "v100", 2),))
QUIET = ("--parsable", "-o", "/dev/null")


@pytest.fixture(scope="module")
def box(slurm_prefix, tmp_path_factory):
    box = Sandbox.up(tmp_path_factory.mktemp("shared") / "box", LAYOUT, slurm_prefix)
    try:
        share(box)
        yield box
    finally:
        box.down()


def share(box):
    """Each V100 can be given out in four parts."""
    box.stop_slurmctld()
    box.kill_slurmd("v1")
    text = box.conf.read_text().replace("GresTypes=gpu", "GresTypes=gpu,shard")
    box.conf.write_text(text.replace("Gres=gpu:v100:2", "Gres=gpu:v100:2,shard:8"))
    with (box.conf.parent / "gres.conf").open("a") as gres:
        gres.write("NodeName=v1 Name=shard Count=8\n")
    # It waits for the node, which waits for it.
    control = threading.Thread(target=box.start_slurmctld)
    control.start()
    box.start_slurmd("v1")
    control.join()


def test_a_shared_gpu_is_in_use(box):
    cluster = open_cluster(load(box.config_path).slurm)
    for gres in ("shard:3", "gpu:1"):
        job = box.run("sbatch", *QUIET, f"--gres={gres}", "-wv1", "--wrap", "sleep 600").strip()
        box.wait_state(job, ("RUNNING",))
    (node,) = [node for node in cluster.read_nodes() if node.name == "v1"]
    assert (dict(node.gpus), dict(node.gpus_used)) == ({"v100": 2}, {"v100": 2})
