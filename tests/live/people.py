"""A site with an accounting database and people on it: a controller's user and three researchers.

They are accounts that every Debian has and nobody uses (nothing is added to the machine, so nothing
can be left behind): no shell, no home, no rights.
"""

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from free_ports import free_port
from in_memory import temporary
from missing import missing
from typed import LOCALE, can_fork, ran

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox import accounting, processes, programs
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions

BIN = Path(sys.executable).parent
DOCS = Path(__file__).parents[2] / "docs"
ADMIN = "".join((DOCS / name).read_text() for name in ("admin.md", "rights.md"))
HADAR, ADA, BOB, EVE = "backup", "news", "games", "irc"
"""The controller's user; ada and bob of account phys; eve of account chem, who means no good."""
CLOSED = ("account", "denied", "group", "qos", "root", "reserved", "time", "size", "memory", "host")
"""Ways in which a partition over the k80 node, ``k_NAME``, is closed to ada and bob. The partition
``both_NAME`` is open, and the configuration says that it stands for ``v100`` and ``k_NAME``."""
LAYOUT = Layout(
    (
        NodeGroup("v", 2, "v100", 2),
        NodeGroup("k", 1, "k80", 2),
        NodeGroup("p", 1, "p100", 2),
    ),
    (
        PartitionSpec("open", ("v",), default=True),
        PartitionSpec("lent", ("p",)),
        PartitionSpec("gpu", ("v", "k")),
        PartitionSpec("v100", ("v",)),
        PartitionSpec("k80", ("k",)),
        *(PartitionSpec(f"k_{name}", ("k",)) for name in CLOSED),
        *(PartitionSpec(f"both_{name}", ("v", "k")) for name in CLOSED),
    ),
)


_MANY = """
import contextlib, io, json, sys
from slurm_hadar.cli.main import main
answers = []
for words in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["hadar", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    answers.append([code, out.getvalue() + err.getvalue()])
json.dump(answers, sys.stdout)
"""


class Site:
    """A sandbox, and its commands as its people type them.

    ``hadar`` starts as in ``typed.py``; :func:`need` starts it as users do.
    """

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder = box, folder
        self.homes = {name: folder / f"home-{name}" for name in (HADAR, ADA, BOB, EVE)}
        for name, home in self.homes.items():
            home.mkdir(mode=0o700)
            os.chown(home, pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid)

    def run(self, user, *words, text="", env=None, cwd=None):
        """A command as that user (None: as us), with his own groups only."""
        who = pwd.getpwnam(user) if user else None
        identity: dict[str, Any] = (
            {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": [who.pw_gid]} if who else {}
        )
        home = self.homes[user] if user else self.folder
        argv = [str(BIN / words[0]) if words[0] in ("hadar", "hbatch") else words[0], *words[1:]]
        env = {**self.box.env, "HOME": str(home), "LC_ALL": LOCALE, **(env or {})}
        text = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        if words[0] == "hadar" and can_fork(env, text):
            return ran(words[1:], env, cwd or home, user=user, text=text)
        return subprocess.run(
            argv,
            env=env,
            cwd=cwd or home,
            input=text,
            capture_output=True,
            timeout=120,
            **identity,
        )

    def __call__(self, user, *words, code=0, text="", **more):
        """What it prints; its status must be ``code`` and it may not fall over."""
        done = self.run(user, *words, text=text, **more)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert done.returncode == code, out + err
        assert "Traceback" not in err and "internal error" not in err, err
        return out if code == 0 else out + err

    def many(self, user, lines, **more):
        """(status, output) of several ``hadar`` commands, in one process since each takes a second
        to start."""
        text = self(user, sys.executable, "-c", _MANY, text=json.dumps(lines), **more)
        answers = json.loads(text)
        assert not [said for _, said in answers if "Traceback" in said]
        return answers

    def admin(self, *words, code=0):
        """A command of the site's admin."""
        return self(None, *words, code=code)

    def tick(self, **more):
        return self(HADAR, "hadar", "tick", **more)

    def submit(
        self, user, *words, script="#!/bin/sh\n#HADAR types=any gpus=1\nsleep 600\n", **more
    ):
        out = self(
            user, "hbatch", "--parsable", "-o", "/dev/null", *words, text=script, **more
        ).strip()
        assert out.isdigit(), out
        return out

    def fill(self):
        """Jobs of the admin's take all v100, and all k80."""
        words = ("--parsable", "--gres=gpu:2", "-o", "/dev/null", "--wrap", "sleep 600")
        types = (("-N2", "-p", "v100"), ("-N1", "-p", "k80"))
        jobs = [self.box.run("sbatch", *one, *words).strip() for one in types]
        self.until(lambda: all(self.show(job, "%T") == "RUNNING" for job in jobs))
        return jobs

    def show(self, job, what="%T|%P|%N|%r|%C|%D"):
        return self.box.run("squeue", "-h", "-t", "all", "-o", what, "-j", job).strip()

    def field(self, job, name):
        """A field of ``scontrol show job``, as the admin sees it."""
        for word in self.box.run("scontrol", "show", "job", job).splitlines():
            if word.strip().startswith(f"{name}="):
                return word.strip().partition("=")[2]
        return ""

    def until(self, holds, timeout_s=120.0):
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, self.seen()
            time.sleep(0.5)

    def seen(self):
        """What there was when something did not come about."""
        queue = self.box.run("squeue", "-t", "all", "-o", "%i %T %P %r %N %S")
        nodes = self.box.run("sinfo", "-N", "-o", "%N %P %T %E")
        return f"it did not come about in time\n{queue}\n{nodes}"

    def starts(self, *jobs, user=HADAR, **more):
        """Tick until these jobs run: at the first one a node may not be free again yet. What the
        ticks said."""
        said = []

        def run():
            return all(self.show(job, "%T") == "RUNNING" for job in jobs)

        def ticked():
            said.append(self(user, "hadar", "tick", **more))
            # More than Slurm needs to start a job, so that one tick is enough as a rule.
            return processes.wait_until(run, 5.0, 0.3)

        self.until(ticked)
        return "".join(said)

    def cancel(self):
        """All jobs end, so that the next test finds the nodes idle."""
        self.box.run("scancel", "--state=PENDING")
        self.box.run("scancel", "--state=RUNNING")
        self.until(lambda: not self.box.run("squeue", "-h").strip())
        self.until(lambda: set(self.nodes()) <= {"idle", "reserved"})

    def recalculates(self):
        """slurmctld reckons priorities once a minute, and when it starts."""
        self.box.stop_slurmctld()
        self.box.start_slurmctld()

    def nodes(self):
        """Their states."""
        return self.box.run("sinfo", "-h", "-N", "-o", "%T").split()

    def journal(self):
        """What ``hadar`` knows, as its user sees it."""
        return json.loads(self(HADAR, "hadar", "status", "--json"))["result"]["rows"]

    @contextmanager
    def runs(self):
        """The controller as a daemon, which answers users on its socket."""
        argv = [str(BIN / "hadar"), "run", "--interval", "2"]
        who = pwd.getpwnam(HADAR)
        log = (self.folder / "run.log").open("w")
        env = {**self.box.env, "HOME": str(self.homes[HADAR]), "LC_ALL": "C.UTF-8"}
        daemon = subprocess.Popen(
            argv, env=env, stdout=log, stderr=log, user=who.pw_uid, group=who.pw_gid,
            extra_groups=[who.pw_gid], cwd=self.homes[HADAR],
        )  # fmt: skip
        try:
            self.until(lambda: "tick:" in (self.folder / "run.log").read_text())
            yield self.folder / "run.log"
        finally:
            daemon.terminate()
            code = daemon.wait(60)
            assert code == 0, (self.folder / "run.log").read_text()
            log.close()


def _closed_to(who: pwd.struct_passwd) -> bool:
    """Whether a user may not even start our programs; whatever else goes wrong is no excuse."""
    argv = [str(BIN / "hadar"), "--version"]
    try:
        done = subprocess.run(
            argv, user=who.pw_uid, group=who.pw_gid, capture_output=True, text=True
        )
    except PermissionError:
        return True
    assert done.returncode == 0, done.stderr
    return False


def need() -> None:
    """Skip where something is missing, saying what."""
    why = ""
    try:
        accounting.find(programs.find())
    except HadarError as error:
        why = str(error)
    if os.getuid() != 0:
        why = "only root can act as other users"
    known = {entry.pw_name for entry in pwd.getpwall()}
    if absent := {HADAR, ADA, BOB, EVE} - known:
        why = f"this machine has no user {min(absent)}"
    if not why and _closed_to(pwd.getpwnam(EVE)):
        why = f"{BIN}: only root may enter its folder; check out where all users may"
    if why:
        missing(why)


@contextmanager
def staffed() -> Iterator[Site]:
    """The site with its people: the controller an operator as docs/admin.md makes one, ada and bob
    of account phys, eve of account chem."""
    need()
    site = up()
    try:
        for what in ("folders", "operator"):
            for line in documented(what, site):
                said = site.admin(*line)
        assert said.strip() == f"{HADAR}|Operator"
        for account in ("phys", "chem"):
            site.admin("sacctmgr", "-i", "add", "account", account)
        for user, account in ((ADA, "phys"), (BOB, "phys"), (EVE, "chem")):
            site.admin("sacctmgr", "-i", "add", "user", user, f"account={account}")
        yield site
    finally:
        down(site)


AGED = """\
PriorityWeightAge=1000000
PriorityMaxAge=0-01:00
PriorityCalcPeriod=01:00
"""


@contextmanager
def with_priorities(lines: str, exchange: str = "") -> Iterator[Site]:
    """The same under priority/multifactor with these lines of slurm.conf, and with that
    ``queue.exchange``."""
    with staffed() as site:
        box = site.box
        if exchange:
            config = box.config_path
            config.write_text(f'{config.read_text()}\n[queue]\nexchange = "{exchange}"\n')
        box.stop_slurmctld()
        text = box.conf.read_text().replace("priority/basic", "priority/multifactor")
        box.conf.write_text(text + lines)
        box.start_slurmctld()
        site.until(lambda: set(site.nodes()) == {"idle"})
        site.admin("hadar", "check", "--write", code=1)
        yield site


@contextmanager
def with_ages(more: str = "") -> Iterator[Site]:
    """The same with a priority that rises by 277 a second, which Slurm computes when it starts and
    at updates. ``more``: lines of slurm.conf."""
    with with_priorities(AGED + more) as site:
        site.tick()
        yield site


def documented(what: str, site: Site) -> list[list[str]]:
    """The lines of docs/admin.md or docs/rights.md under that mark, with this site's names in them;
    its user is there already."""
    here = {
        "/var/lib/slurm-hadar": str(site.folder / "state"),
        "/shared/slurm-hadar": str(site.folder / "exchange"),
    }
    block = re.search(rf"<!-- tried: {what} -->\n```sh\n(.*?)```", ADMIN, re.DOTALL)
    assert block, what
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    lines = [line for line in lines if line and line[0] != "useradd"]
    return [
        [re.sub("(^|=)hadar$", rf"\1{HADAR}", here.get(word, word)) for word in line]
        for line in lines
    ]


def up() -> Site:
    """The site. Its folder can be read by all, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="hadar-rights-", dir=temporary()))
    folder.chmod(0o755)
    # As an admin makes them: below folders of root's, open to their user.
    state, exchange, run = folder / "state", folder / "exchange", folder / "run"
    run.mkdir(mode=0o755)
    os.chown(run, pwd.getpwnam(HADAR).pw_uid, -1)
    try:
        box = Sandbox.up(
            folder / "box",
            LAYOUT,
            options=SandboxOptions(
                mode="act",
                with_accounting=True,
                settings={
                    "site": {
                        "rights": "operator",
                        "controller_user": HADAR,
                        "state_dir": str(state),
                        "exchange_dir": str(exchange),
                    },
                    "status": {"socket": str(run / "hadar.sock")},
                    "metrics": {"textfile": str(run / "hadar.prom"), "port": free_port()},
                    "partitions": {
                        "groups": {
                            "gpu": ("v100", "k80"),
                            **{f"both_{name}": ("v100", f"k_{name}") for name in CLOSED},
                        }
                    },
                    "guards": {"min_between_moves_s": 0.0},
                    # A controller counts as alive for three intervals: longer than any test takes.
                    "controller": {"interval_s": 300.0},
                },
            ),
        )
    except BaseException:
        shutil.rmtree(folder)
        raise
    return Site(box, folder)


def down(site: Site) -> None:
    """Nothing stays: no process, no file."""
    try:
        site.box.down()
        assert not processes.ours(site.box.places)
    finally:
        shutil.rmtree(site.folder)
