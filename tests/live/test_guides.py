"""The guides, followed to the letter on a sandbox: what they say to type is typed, and what they
show is shown."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from pauses import pauses

from slurm_hadar.config import load
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"(?:<!-- tried: (\w+) -->\n)?^```(\w*)\n(.*?)^```", re.M | re.S)
ELSEWHERE = {
    "./install.sh site": "test_install.py",
    "./install.sh uninstall": "test_install.py",
    "packaging/deb/build.sh": "test_release.py builds one and runs it from where it lies",
    "sudo apt install ": "changes this machine; see above",
    "systemctl ": "needs a systemd; its units are verified in test_packaging.py",
    "install -D -m 0644 slurm-hadar.": "the same",
    "cp *.service *.timer /etc/systemd/system/": "the same",
    "cd /opt/slurm-hadar": "the same",
    "hadar alerts ": "test_report_live.py",
    "hadar doctor ": "test_doctor_live.py",
    "hadar plugins remove": "test_plugins.py",
    "sudo -u hadar hadar retire": "test_retire.py, and test_install.py by uninstall",
    "hadar report ": "test_report_live.py",
    "ln -s /opt/slurm-hadar/bin/hbatch ": "test_hbatch_program.py submits through such a link",
    "jq ": "a program of its own; test_log_lines.py reads the same lines",
    "sacctmgr ": "needs an accounting database; test_rights.py has one",
    "useradd ": "makes a user of the machine; test_rights.py does",
}
"""Lines that are not typed here, by their beginning, and who tries them."""


def blocks(page, *kinds):
    """The fenced blocks of a page that no other test has marked as its own."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [body for mark, kind, body in FENCE.findall(text) if kind in kinds and not mark]


def steps(page):
    """(command, lines shown below it) of all that a page says to type."""
    for body in blocks(page, "console", "sh"):
        if "$ " not in body[:2]:
            yield body.rstrip("\n"), []
            continue
        for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            yield command, shown


def like(line):
    """What a line of a guide looks like, whatever the numbers, GPUs, nodes and the user."""
    words = re.split(r"(\[?\.\.\.\]?|\s+|\d[\d.,:TZ+-]*|\broot\b|\b[vpk]\d\b|v100|p100|k80)", line)
    pattern = ""
    for number, word in enumerate(words):
        if number % 2 == 0:
            pattern += re.escape(word)
        elif word.strip() == "":
            pattern += r"\s+"
        elif "..." in word:
            pattern += ".*"
        elif word == "root":
            pattern += r"\S+"
        else:
            pattern += r"[\w.,:+-]+"
    return re.compile(pattern)


class Reader:
    """Somebody who types what a guide says. ``instead``: words of the guide -> his own."""

    def __init__(self, folder, env):
        self.folder, self.env = folder, env
        self.instead = {}
        self.job = ""
        self.box: Sandbox
        self.tried: set[str]

    def types(self, command, shown=(), code=0):
        """Type one command; ``shown``: lines that it must show, ``code``: how it ends."""
        for word in ("sudo -u hadar ", "sudo "):
            command = command.removeprefix(word)
        for theirs, ours in self.instead.items():
            command = command.replace(theirs, str(ours))
        if self.job:
            # Whichever job a page speaks of.
            command = re.sub(r"\b\d{6}\b", self.job, command)
        done = subprocess.run(
            ["/bin/bash", "-ec", command],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{command}\n{said}"
        for line in shown:
            assert like(line.strip()).search(said), f"{command}\nshould show: {line}\n{said}"
        return said


def until(holds, what, seconds=90.0):
    end, pause = time.monotonic() + seconds, pauses()
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(next(pause))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The sandbox of the admin's guide, by its own words; with it the shell of whoever reads on."""
    from slurms import need

    need(None)
    folder = tmp_path_factory.mktemp("guides")
    (folder / "home").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(folder / "home"), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    reader = Reader(folder, env)
    box = folder / "box"
    reader.instead = {"/tmp/box": box}
    lines = dict(one for one in steps("admin") if one[0].startswith("hadar sandbox "))
    up, status, down = lines
    said = reader.types(up)
    for name, value in re.findall(r'export (\w+)="(.*)"', said):
        env[name] = value
    reader.box = Sandbox.attach(box)
    try:
        assert all(line.replace("/tmp/box", str(box)) in said for line in lines[up][:3])
        reader.types(status, [line.replace("/tmp/box", str(box)) for line in lines[status]])
        reader.tried = {up, status, down}
        yield reader
    finally:
        said = reader.types(down)
    assert lines[down][0].replace("/tmp/box", str(box)) in said


@pytest.fixture(scope="module")
def training(place):
    """The researcher's three steps: his training runs, tells its progress, and moves to v100."""
    (program,) = blocks("researcher", "python")[:1]
    (script,) = blocks("researcher", "bash")[:1]
    (place.folder / "train.py").write_text(program)
    (place.folder / "train.sh").write_text(script)
    typed = dict(steps("researcher"))
    place.types("hadar tick")
    words = ("-o", "/dev/null", "-N2", "--gres=gpu:2", "--wrap", "sleep 600")
    busy = [
        place.box.run("sbatch", "--parsable", *words, "-p", kind).strip()
        for kind in ("v100", "p100")
    ]
    for one in busy:
        place.box.wait_state(one, ("RUNNING",), 60)
    said = place.types("hbatch train.sh", typed["hbatch train.sh"])
    job = re.search(r"Submitted batch job (\d+)", said)[1]
    place.job = job
    place.box.wait_state(job, ("RUNNING",), 90)
    place.types("squeue", typed["squeue"])
    until(lambda: list(place.box.exchange.glob(f"progress.{job}.*")), "it trains")
    place.box.run("scancel", busy[0])
    until(lambda: f"move job {job} to 1 x v100" in place.types("hadar tick"), "it moves")
    place.box.wait_state(job, ("RUNNING",), 90)
    yield job
    place.box.run("scancel", job, busy[1])


def all_tried(page, tried):
    """Nothing that a page says to type is left out in silence."""
    left = [one for one, _ in steps(page) if one not in tried]
    for one in left:
        lines = [line for line in one.splitlines() if line.strip()]
        assert all(line.startswith(tuple(ELSEWHERE)) for line in lines), (
            f"{page}.md: {one}\ntry it here, or say in ELSEWHERE who does"
        )


@contextmanager
def no_gpu_free(place):
    """Jobs of somebody else's have what the training leaves."""
    nodes = open_cluster(load(place.box.config_path).slurm).read_nodes()
    free = sum(sum(n.gpus.values()) - sum(n.gpus_used.values()) for n in nodes)
    words = ("-o", "/dev/null", "--gres=gpu:1", "--wrap", "sleep 600")
    fill = [place.box.run("sbatch", "--parsable", *words).strip() for _ in range(free)]
    for job in fill:
        place.box.wait_state(job, ("RUNNING",), 60)
    try:
        yield
    finally:
        place.box.run("scancel", *fill)


ORDINARY = re.compile(r"Job |Speed|  GPUS|Last decision|To opt it out|job \d+ stays")
"""Lines that do not hang on what else the cluster does."""


def test_the_operators_night(place, training):
    typed = dict(steps("operator"))
    place.types("hadar tick")
    row = f"{training} ... sums RUNNING 1 v100 (v1) ... stays: ends in"
    # Its host has another name.
    summary = [one.replace("login1", "...") for one in typed["hadar status"][:-1] if one]
    place.types("hadar status", [*summary, row])
    shown = [one for one in typed if one.startswith(("hadar plan", "hadar explain "))]
    for command in shown:
        # Behind a semicolon stands the reason, which is another one each day.
        lines = [line.split(";")[0] for line in typed[command] if ORDINARY.match(line)]
        place.types(command, lines)
    with no_gpu_free(place):
        own = "hbatch --parsable --gres=gpu:1 --hadar-types=any -p k80,p100,v100 --wrap true"
        place.job = waits = place.types(own).split()[0]
        assert f"update job {waits}: Partition=v100,p100,k80" in place.types("hadar tick")
        (grep,) = [one for one in typed if "grep -E" in one]
        place.types(grep, typed[grep])
        assert place.box.run("squeue", "-h", "-o", "%r", "-j", waits).strip() != "BeginTime"
        # By hand, with the very command that is printed.
        (back,) = re.findall(r"By hand: (.*)", place.types(f"hadar explain {waits}"))
        place.types("hadar optout " + waits)
        place.types(back)
        assert place.box.run("squeue", "-h", "-o", "%P", "-j", waits).strip() == "k80,p100,v100"
        place.box.run("scancel", waits)
    place.job = training
    (stop,) = [one for one in typed if one.startswith("touch ")]
    flag = re.search(r'stop_file = "(.*?)"', place.box.config_path.read_text())[1]
    place.instead["/etc/slurm-hadar/stop"] = flag
    place.types(stop.splitlines()[0])
    assert "exists: nothing is changed" in place.types("hadar tick")
    Path(flag).unlink()
    assert stop.splitlines()[1].startswith("systemctl stop ")
    all_tried("operator", {"hadar status", *shown, grep, stop})


def test_the_researchers_three_minutes(place, training):
    (place.folder / "bad.sh").write_text("#!/bin/sh\n#HADAR gpu=1\ntrue\n")
    (place.folder / "plain.sh").write_text("#!/bin/sh\ntrue\n")
    typed = dict(steps("researcher"))
    place.types("hbatch bad.sh", typed["hbatch bad.sh"], code=2)
    (het,) = (one for one in typed if " : " in one)
    (clash,) = (one for one in typed if "plain.sh" in one)
    said = place.types(het, typed[het])
    # The same script, so the same checkpoint: left to run, it would take the training over.
    place.box.run("scancel", re.search(r"batch job (\d+)", said)[1])
    place.types(clash, typed[clash], code=2)
    place.env["HADAR_EXCHANGE"] = str(place.box.exchange)
    for command in typed:
        if command.startswith(("hadar pin", "hadar set", "hadar optout")):
            place.types(command, typed[command])
        elif command.startswith("python -m json.tool"):
            # Each day has its own reason.
            place.types(command, [one for one in typed[command] if "gain" not in one])
        else:
            assert command in ("hbatch train.sh", "squeue", "hbatch bad.sh", het, clash), command


def test_the_admins_way_from_watching_to_acting(place):
    typed = dict(steps("admin"))
    toml = place.box.config_path
    act = toml.read_text()
    assert act.count('mode = "act"') == 1
    tried = set(place.tried)

    def types(beginning, **more):
        for command, shown in typed.items():
            if command.startswith(beginning):
                tried.add(command)
                place.types(command, shown, **more)

    try:
        toml.write_text(act.replace('mode = "act"', 'mode = "observe"'))
        types("sudo hadar check --write")
        types("sudo -u hadar hadar check")
        types("hadar tick")
        own = place.types("hbatch --gres=gpu:1 --hadar-types=any --wrap true")
        assert "--begin" not in own and "--partition" not in own
        toml.write_text(act)
        place.types("hadar check --write")
        types("hadar retire")
    finally:
        toml.write_text(act)
        place.types("hadar check --write")
    # One researcher's own: the configuration is complete as it stands there.
    (alone,) = [body for body in blocks("rights", "toml") if 'rights = "user"' in body]
    for theirs in ("/home/ada/.local/state/slurm-hadar", "/home/ada/slurm-hadar-exchange"):
        mine = place.folder / Path(theirs).name
        mine.mkdir(mode=0o700)
        alone = alone.replace(theirs, str(mine))
    file = place.folder / "home" / ".config" / "slurm-hadar" / "hadar.toml"
    file.parent.mkdir(parents=True)
    file.write_text(alone)
    kept = place.env.pop("HADAR_CONFIG")
    try:
        # A sandbox's SlurmUser is warned of having too many rights.
        said = place.types("hadar check --write || true")
        assert "per-user mode: only jobs of" in said and file.with_suffix(".hbatch.json").exists()
        log = place.folder / "run.log"
        with log.open("w") as stream:
            argv = ["hadar", "run", "--interval", "2"]
            running = subprocess.Popen(argv, env=place.env, cwd=place.folder, stdout=stream,
                                       stderr=stream)  # fmt: skip
        try:
            until((place.folder / "slurm-hadar-exchange" / "heartbeat.json").exists, "it runs")
            with no_gpu_free(place):
                asks = "hbatch --gres=gpu:1 --hadar-types=any -p k80,p100,v100 --wrap true"
                job = re.search(r"batch job (\d+)", place.types(asks))[1]
                steers = f"update job {job}: Partition=v100,p100,k80"
                until(lambda: steers in log.read_text(), "it orders the job's partitions")
            place.box.wait_state(job, ("COMPLETED",), 60)
        finally:
            running.terminate()
            assert running.wait(60) == 0
    finally:
        place.env["HADAR_CONFIG"] = kept
    tried |= {"hadar check --write", "hadar run"}
    for page in ("admin", "rights", "queue", "configuration"):
        all_tried(page, tried)
