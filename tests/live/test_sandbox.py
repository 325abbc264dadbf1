"""The sandbox on a real Slurm: what is up, what a job sees, and that nothing stays behind."""

import contextlib
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from missing import missing, needs_root

from slurm_hadar import config
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.sandbox import processes, programs
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = pytest.mark.live

SMALL = Layout((NodeGroup("v", 1, "v100", 2),))


def submit(box, command, *options):
    return box.run("sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", command).strip()


def show(box, kind, name):
    words = box.run("scontrol", "-o", "show", kind, name).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_six_idle_nodes_with_typed_gpus(sandbox_each):
    status = sandbox_each.status()
    assert status.is_running
    assert status.nodes == dict.fromkeys(("v1", "v2", "p1", "p2", "k1", "k2"), "idle")
    for name, kind in (("v1", "v100"), ("p2", "p100"), ("k1", "k80")):
        node = show(sandbox_each, "node", name)
        assert node["Gres"] == f"gpu:{kind}:2"
        assert node["ActiveFeatures"] == kind
    assert "idle" in str(status) and sandbox_each.programs.version in str(status)


def test_a_job_sees_its_gpus_and_the_pacing_file(sandbox_each, tmp_path):
    tmp_path.chmod(0o755)
    out = tmp_path / "out"
    write = f"echo $CUDA_VISIBLE_DEVICES $HADAR_TRUE_RATES $SLURMD_NODENAME >> {out}"
    job = submit(
        sandbox_each, f"{write}; srun sh -c '{write}'", "--gres=gpu:2", "--constraint=p100"
    )
    sandbox_each.wait_state(job)
    batch, step = out.read_text().splitlines()
    assert batch == step
    gpus, pace, node = batch.split()
    assert gpus == "0,1"
    assert json.loads(Path(pace).read_text())["nodes"][node] == ["p100", "p100"]


def test_two_jobs_of_a_node_get_different_gpus(sandbox_each, tmp_path):
    outs = [tmp_path / "a", tmp_path / "b"]
    # Each stays until the other is there.
    both = f"until [ -s {outs[0]} ] && [ -s {outs[1]} ]; do sleep 0.1; done"
    jobs = [
        submit(sandbox_each, f"echo $CUDA_VISIBLE_DEVICES > {out}; {both}", "--gres=gpu:1", "-wk1")
        for out in outs
    ]
    for job in jobs:
        sandbox_each.wait_state(job)
    assert sorted(out.read_text().strip() for out in outs) == ["0", "1"]


def test_the_configuration_is_a_throw_away_one(sandbox):
    site = config.load(sandbox.config_path).site
    assert site.rights == "sandbox" and site.mode == "observe"
    assert stat.S_IMODE(site.exchange_dir.stat().st_mode) == 0o1777
    assert stat.S_IMODE(site.state_dir.stat().st_mode) == 0o700
    assert set(config.load(sandbox.config_path).gpu_types) == {"v100", "p100", "k80"}


def test_all_sockets_listen_on_loopback_only(sandbox):
    inodes = set()
    for pid in processes.ours(sandbox.places):
        # A process may end, and a connection be closed, as one looks.
        found = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = list(Path(f"/proc/{pid}/fd").iterdir())
        for fd in found:
            with contextlib.suppress(FileNotFoundError):
                inodes.add(str(fd.readlink()).removeprefix("socket:[").removesuffix("]"))
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].split(":")[0])
    loopback = socket.inet_aton("127.0.0.1")[::-1].hex().upper()
    assert len(listening) >= 7 and set(listening) == {loopback}


def test_up_twice_in_one_folder_is_refused_and_harmless(sandbox):
    with pytest.raises(UsageError, match=r"up in .* already"):
        Sandbox.up(sandbox.folder)
    assert sandbox.status().is_running
    assert Sandbox.attach(sandbox.folder).status().is_running


def test_down_ends_running_jobs_and_every_process(make_sandbox, tmp_path):
    box = make_sandbox(layout=SMALL)
    mark = tmp_path / "pids"
    job = submit(
        box, f"trap '' TERM; sleep 1234 & echo $$ $! > {mark}; wait; sleep 1234", "--gres=gpu:1"
    )
    submit(box, "sleep 1234", "--gres=gpu:2")
    box.wait_state(job, ["RUNNING"])
    assert processes.wait_until(lambda: mark.exists() and len(mark.read_text().split()) == 2, 60)
    before = processes.ours(box.places)
    assert len(before) >= 5
    box.down()
    left = [*before, *map(int, mark.read_text().split())]
    assert not any(map(processes.is_alive, left))
    assert not processes.ours(box.places)


def test_a_sandbox_that_is_down_says_so_and_starts_again(make_sandbox, tmp_path):
    box = make_sandbox(layout=SMALL)
    folder = box.folder
    (box.exchange / "plan.1.json").touch()
    box.down()
    dead = Sandbox.attach(folder)
    assert not dead.status().is_running
    assert str(dead.status()) == f"The sandbox in {folder} is down."
    dead.down()
    with Sandbox.up(folder, SMALL) as again:
        assert not any(again.exchange.iterdir())
        again.wait_state(submit(again, "true", "--gres=gpu:1"))
        again.down(remove=True)
    assert not folder.exists()


def test_two_side_by_side(make_sandbox, slurm_prefix, tmp_path):
    first = make_sandbox(layout=SMALL)
    second = make_sandbox(layout=SMALL, slurm_prefix=slurm_prefix)
    jobs = [(box, submit(box, "sleep 1", "--gres=gpu:v100:2")) for box in (first, second)]
    for box, job in jobs:
        box.wait_state(job)
    second.down()
    assert not second.status().is_running
    assert first.status().is_running
    first.wait_state(submit(first, "true", "--gres=gpu:1"))


def test_a_job_of_the_idle_partition_gives_way_and_comes_back(make_sandbox, tmp_path):
    box = make_sandbox(layout=SMALL, cred_expire_s=5)
    first_long = '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    low = submit(box, first_long, "--gres=gpu:2", "--partition=idle")
    box.wait_state(low, ["RUNNING"])
    seen = tmp_path / "seen"
    high = submit(box, f"until [ -e {seen} ]; do sleep 0.1; done", "--gres=gpu:2")
    box.wait_state(high, ["RUNNING"])
    assert box.job_state(low) in ("PENDING", "COMPLETING")
    seen.touch()
    box.wait_state(high)
    box.wait_state(low)
    assert show(box, "job", low)["Restarts"] == "1"


def test_nodes_of_mixed_types_and_without_gpus(make_sandbox, tmp_path):
    layout = Layout(
        (NodeGroup("m", 1, "p100", 1, more={"k80": 2}), NodeGroup("c", 1, cpus=8, memory_mb=9000))
    )
    box = make_sandbox(layout=layout)
    out = tmp_path / "out"
    write = f"echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES >> {out}"
    box.wait_state(submit(box, write, "--gres=gpu:k80:2"))
    box.wait_state(submit(box, write, "--partition=cpu"))
    assert out.read_text().splitlines() == ["m1 1,2", "c1"]
    assert json.loads(box.true_rates.read_text())["nodes"] == {
        "m1": ["p100", "k80", "k80"],
        "c1": [],
    }


def test_thousands_of_nodes_without_slurmd_are_usable_to_slurm(make_sandbox, slurm_prefix):
    layout = Layout((NodeGroup("v", 1, "v100", 2), NodeGroup("far", 2000, "k80", 4, started=False)))
    box = make_sandbox(layout=layout, slurm_prefix=slurm_prefix)

    def states():
        return sorted(box.run("sinfo", "-h", "-p", "gpu", "-o", "%D %t").splitlines())

    assert processes.wait_until(lambda: states() == ["1 idle", "2000 idle~"], 60, 0.2), states()
    assert show(box, "node", "far2000")["Gres"] == "gpu:k80:4"
    far = submit(box, "true", "--gres=gpu:3")
    box.wait_state(far, ["CONFIGURING"])
    box.wait_state(submit(box, "true", "--gres=gpu:v100:1"))


def test_a_folder_too_deep_for_sockets(make_sandbox, tmp_path):
    folder = tmp_path / ("x" * 100) / "box"
    with Sandbox.up(folder, SMALL) as box:
        assert box.places.run.parent != folder
        box.wait_state(submit(box, "srun true", "--gres=gpu:1"))
    assert not box.places.run.exists()


def test_a_killed_process_leaves_no_sandbox_behind(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from slurm_hadar.sandbox.cluster import Sandbox\n"
        "with Sandbox.up(Path(sys.argv[1])) as box:\n"
        "    print(flush=True)\n"
        "    time.sleep(600)\n"
    )
    folder = tmp_path / ("x" * 100) / "box"
    argv = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as held:
        try:
            assert held.stdout.readline() == "\n"
            box = Sandbox.attach(folder)
            job = submit(box, "sleep 600", "--gres=gpu:1")
            box.wait_state(job, ["RUNNING"])
            assert len(processes.ours(box.places)) > 8
        finally:
            held.kill()
    gone = processes.wait_until(lambda: not box.places.run.exists(), 60)
    left = processes.ours(box.places)
    processes.end(left, 10)
    assert gone and not left


def remove(folder):
    """A daemon may write beside this."""

    def gone():
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    assert processes.wait_until(gone, 30)


def test_a_killed_process_leaves_no_sandbox_behind_whose_folder_is_gone(tmp_path):
    """As where a second Ctrl-C cuts the end of a sandbox in a temporary folder short."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from slurm_hadar.sandbox.cluster import Sandbox\n"
        "with Sandbox.up(Path(sys.argv[1])) as box:\n"
        "    print(flush=True)\n"
        "    time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "box")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as held:
        try:
            assert held.stdout.readline() == "\n"
            box = Sandbox.attach(tmp_path / "box")
            assert len(processes.ours(box.places)) > 8
            remove(box.folder)
        finally:
            held.kill()
    gone = processes.wait_until(lambda: not processes.ours(box.places), 60)
    processes.end(processes.ours(box.places), 10)
    assert gone


@pytest.mark.parametrize("deep", [False, True])
def test_down_ends_a_sandbox_whose_folder_is_gone_and_no_other(make_sandbox, tmp_path, deep):
    folder = tmp_path / ("x" * 100 if deep else "y") / "box"
    other = make_sandbox(layout=SMALL)
    box = Sandbox.up(folder, SMALL, options=SandboxOptions(outlives=True))
    argv = [sys.executable, "-m", "slurm_hadar.cli.main", "sandbox", "down", str(folder)]
    try:
        box.wait_state(submit(box, "trap '' TERM; sleep 1234", "--gres=gpu:1"), ["RUNNING"])
        remove(folder)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"The sandbox in {folder} is down.\n"
        assert not processes.ours(box.places) and not box.places.run.exists()
        again = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
        assert again.returncode == 2 and "holds no sandbox" in again.stderr
    finally:
        processes.end(processes.ours(box.places), 10)
        shutil.rmtree(box.places.run, ignore_errors=True)
    assert other.status().is_running


def test_slurmd_and_slurmctld_can_go_and_come_back(make_sandbox):
    box = make_sandbox(layout=Layout((NodeGroup("v", 2, "v100", 2),)))
    box.kill_slurmd("v2")
    assert box.status().daemons["slurmd.v2"] is False
    assert "not running: slurmd.v2" in str(box.status())
    box.start_slurmd("v2")
    box.wait_state(submit(box, "true", "--gres=gpu:1", "-wv2"))
    # A node that a waiting job is meant for comes back as well.
    small = submit(box, "sleep 600", "--gres=gpu:2", "-wv1")
    large = submit(box, "true", "--gres=gpu:2", "-N2")
    assert processes.wait_until(lambda: box.status().nodes["v2"] == "planned", 60, 0.2)
    box.kill_slurmd("v2")
    box.start_slurmd("v2")
    box.run("scancel", small, large)
    box.stop_slurmctld()
    assert not box.status().is_running and not box.status().nodes
    box.start_slurmctld()
    box.wait_state(submit(box, "true", "--gres=gpu:1"))


def test_slurmctld_ends_and_comes_back_without_its_pid_file(sandbox_each):
    """As after a reconfigure of 24.11, where the old process may remove the new one's file."""
    sandbox_each.run("scontrol", "reconfigure")
    (sandbox_each.places.run / "slurmctld.pid").unlink(missing_ok=True)
    sandbox_each.stop_slurmctld()
    sandbox_each.start_slurmctld()
    assert " UP" in sandbox_each.run("scontrol", "ping")


def test_when_a_part_does_not_start_nothing_stays(tmp_path, slurm_prefix):
    real = programs.find(slurm_prefix)
    broken = tmp_path / "broken"
    for name, folder in (("bin", real.bin_dir), ("sbin", real.slurmctld.parent)):
        (broken / name).mkdir(parents=True)
        for tool in folder.iterdir():
            if tool.name.startswith("s") and tool.name != "slurmd":
                (broken / name / tool.name).symlink_to(tool)
    for name in ("bin", "sbin"):
        (broken / name / "slurmd").symlink_to("/bin/false")
    with pytest.raises(HadarError, match=r"slurmd did not start[\s\S]*last lines of"):
        Sandbox.up(tmp_path / "box", SMALL, slurm_prefix=broken)
    box = Sandbox.attach(tmp_path / "box")
    assert (box.places.log / "slurmctld.log").exists()
    assert not processes.ours(box.places)


def _closed_to(user):
    """Whether this Python lies where only root may enter. Any other fault of it is a failure."""
    who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", ""], **who, cwd="/", check=True)
    except PermissionError:
        return True
    return False


def test_root_is_not_needed(tmp_path):
    needs_root("it runs a sandbox as another user")
    user = pwd.getpwnam("nobody")
    code = (
        "import sys; from pathlib import Path\n"
        "from slurm_hadar.sandbox.cluster import Sandbox\n"
        "with Sandbox.up(Path(sys.argv[1]) / 'box') as box:\n"
        "    job = box.run('sbatch', '--parsable', '-o', '/dev/null', '--gres=gpu:2',"
        " '--wrap', 'test $CUDA_VISIBLE_DEVICES = 0,1').strip()\n"
        "    print(box.wait_state(job), len(box.status().nodes))\n"
    )
    if _closed_to(user):
        missing("only root may enter the folder of this Python; check out where all users may")
    with tempfile.TemporaryDirectory(prefix="hadar-test-", dir="/tmp") as folder:
        os.chown(folder, user.pw_uid, user.pw_gid)
        done = subprocess.run(
            [sys.executable, "-c", code, folder],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
            env={"HOME": folder, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.split() == ["COMPLETED", "6"], done.stderr
