"""A job declared with hbatch, or opted in by the plugins, is the job that sbatch makes of the same
words: all that ``scontrol show job`` shows, but for an allowlist.

``HADAR_TEST_SUBMITS=500`` compares that many jobs; a usual run does with fewer.
"""

import os
import re
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from submit_lines import Submit, jobs
from submit_shell import Shell, load_plugins, moment, nameless, verdict

from slurm_hadar import config
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.declaration import decode
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.sandbox.processes import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]

SEED = 11
COUNT = int(os.environ.get("HADAR_TEST_SUBMITS", "60"))
AT_ONCE = 100
"""Submits before a look at the queue; of what they make Slurm looks at 100."""
LOOKS_EVERY_S = 2.5
SETTLED_S = 30
PLUGINS = ("job-submit", "cli-filter")
OPT_IN = ("gpu", "v100")
SETTINGS = {"partitions": {"opt_in": OPT_IN}}
CONF = """
Licenses=lic:4
PriorityType=priority/multifactor
PriorityWeightPartition=1000
PriorityWeightQOS=1000
SchedulerParameters=bf_interval=1,bf_continue,sched_interval=1,sched_min_interval=0
"""
"""Priorities that do not hang on time, so that they can be compared, and quick looks at a job."""

OWN = {"JobId", "ArrayJobId", "HetJobId", "SubmitTime", "LastSchedEval", "SubmitLine", "Comment"}
"""Fields of which each job has its own, whoever submits it, and the one that is ours."""
GUESSED = {"StartTime", "EndTime", "SchedNodeList", "Scheduler"}
"""Where and when Slurm thinks that a job will start, and which of its loops looked last: not the
same for two equal jobs in a row."""
ADDED = {
    "--gres": {"TresPerNode", "TRES", "ReqTRES"},
    "--gpus": {"TresPerJob", "TRES", "ReqTRES"},
    "--constraint": {"Features"},
    "--requeue": {"Requeue"},
    "--partition": {"Partition"},
    "--open-mode": set(),
}
"""Option that hbatch says it adds, because it was declared -> the fields that show it."""
DECLARED = {"types=(?!any)": {"Features", "Partition"}, "checkpoint": {"Requeue"}}
"""The same of the plugins, by what was declared."""
WAITS = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN")
"""Reasons of which equal jobs in a row have now this, now that one: all are shown as Priority."""
CONTRADICTED = "make them agree|is declared, and "
"""What hbatch says of a declaration that its own request contradicts."""
WHOLE_LINES = {"Comment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "SubmitLine"}


class Site:
    """A busy cluster, and all ways to submit to it."""

    def __init__(self, box, folder):
        self.box, self.shell = box, Shell(box, folder)
        self.config = config.load(box.config_path)
        write_wrapper_site(self.config, box.config_path)

    def prepare(self):
        """All nodes taken; things to ask for; the number of a job that waits for ever."""
        if self.box.has_accounting:
            self._manage("add", "qos", "gold", "Priority=100")
            self._manage("add", "account", "science")
            self._manage("add", "user", "root", "Account=science")
            self._manage("modify", "user", "root", "set", "QOS=normal,gold")
        self.box.stop_slurmctld()
        text = re.sub(
            r"(?m)^(PriorityType|SchedulerParameters)=.*\n",
            "",
            self.box.conf.read_text(),
        )
        self.box.conf.write_text(text + CONF)
        self.box.start_slurmctld()
        nodes = len(self.box.layout.started)
        for _ in range(nodes):
            self.submit_plain("-N1", "--exclusive", "-pgpu", "-t1-0", "--wrap=exec sleep 9999")
        assert wait_until(lambda: self.count("R") == nodes, 60)
        self.box.run(
            "scontrol", "create", "reservation", "ReservationName=later", "StartTime=now+20hours",
            "Duration=60", "Nodes=k2", "Users=root", "Flags=IGNORE_JOBS",
        )  # fmt: skip
        return self.submit_plain("-H", "--wrap=true")

    def _manage(self, *words):
        self.box.run("sacctmgr", "-i", *words)

    def submit_plain(self, *words):
        return self.box.run("sbatch", "--parsable", "-o/dev/null", *words).strip()

    def count(self, states):
        return len(self.box.run("squeue", "-h", "-t", states).split("\n")) - 1

    def submit(self, program, cases):
        """What each submit answered, and the job that it made as Slurm shows it, or None.

        ``noted``: of each, whether hbatch declared it, and which options it added."""
        answers, self.noted = [], []
        for case in cases:
            answers.append(self.shell.ask(program, case))
            self.noted.append((self.shell.is_managed(), self.shell.added()))
        numbers = [_number(out) for _, out, _ in answers]
        mine = [number for number in numbers if number]
        shown = self._settled(mine) if mine else {}
        scripts = {
            number: self.box.run("scontrol", "write", "batch_script", number, "-")
            for number in mine
        }
        if mine:
            self.box.run("scancel", *mine)
        return [
            (answer, {**shown[number], "script": scripts[number]} if number else None)
            for answer, number in zip(answers, numbers, strict=True)
        ]

    def _settled(self, numbers):
        """All fields of these jobs once Slurm has looked at each, and found nothing new."""
        end = time.monotonic() + SETTLED_S
        before = None
        while time.monotonic() < end:
            found = _jobs(self.box.run("scontrol", "show", "job"))
            mine = {
                number: {k: v for k, v in found[number].items() if k not in OWN | GUESSED}
                for number in numbers
            }
            looked_at = all(one["Reason"] != "None" for one in mine.values())
            if mine == before and looked_at:
                break
            before = mine
            time.sleep(LOOKS_EVERY_S)
        return found


def _number(out):
    match = re.fullmatch(r"(?:Submitted batch job )?(\d+)\n", out)
    return match and match[1]


def _jobs(text):
    """Number -> the fields of that job, its number taken out."""
    found = {}
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        match = re.match(r"JobId=(\d+) (.*)JobName=(.*)", lines[0])
        number = (re.search(r"ArrayJobId=(\d+)", match[2]) or match)[1]
        fields = {"JobName": match[3], **_pairs(match[2])}
        for line in lines[1:]:
            key, _, value = line.strip().partition("=")
            fields |= {key: value} if key in WHOLE_LINES else _pairs(line)
        if fields["Reason"].startswith(WAITS):
            fields["Reason"] = "Priority"
        if "MemPerTres" in fields:
            # Of equal jobs with --mem-per-gpu Slurm shows now the one, now the other.
            fields = {key: value for key, value in fields.items() if "MinMemory" not in key}
        found[number] = {key: nameless(value, number) for key, value in fields.items()}
    return found


def _pairs(line):
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def differences(plain, ours, allowed):
    """Field -> its two values, where these differ and may not."""
    found = {
        key: (plain.get(key), ours.get(key))
        for key in (plain.keys() | ours.keys()) - OWN - GUESSED - allowed
        if not _is_equal(plain, ours, key)
    }
    owners, comment = plain.get("Comment", ""), ours.get("Comment", "")
    if comment != owners and not comment.startswith(f"{owners} [hadar1".lstrip()):
        found["Comment"] = (owners, comment)
    return found


def _is_equal(plain, ours, key):
    one, other = plain.get(key, ""), ours.get(key, "")
    if one == other:
        return True
    try:
        apart_s = moment(other) - moment(one)
        return abs(apart_s - (moment(ours["SubmitTime"]) - moment(plain["SubmitTime"]))) <= 2
    except ValueError:
        return False


@pytest.fixture
def site(slurm_prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    options = SandboxOptions(mode="act", settings=SETTINGS, with_accounting=slurm_prefix is None)
    with Sandbox.up(folder / "box", slurm_prefix=slurm_prefix, options=options) as box:
        made = Site(box, folder)
        yield made
        made.shell.close()


def says(case):
    """The words of a declaration in a script that sbatch reads."""
    if any(word.startswith("--wr") for word in case.argv):
        return ""
    match = re.search(r"^#HADAR (.*)$", (case.script or b"").decode(errors="replace"), re.M)
    return match[1].partition(" #")[0] if match else ""


def test_the_same_words_make_the_same_job(site):
    held = site.prepare()
    more = {
        "dependency": ["singleton", *(f"{kind}:{held}" for kind in ("afterany", "after"))],
        "licenses": ["lic:1", "lic:2"],
        "reservation": ["later"],
        "qos": ["normal", "gold"],
        "deadline": ["now+9hours", "tomorrow+3days"],
    }  # fmt: skip
    cases = jobs(8 * COUNT, SEED, more)
    wrong, seen = [], Counter[str]()
    plain: list[Any] = []
    chosen: list[Submit] = []
    while seen["jobs"] < COUNT:
        some, cases = cases[:AT_ONCE], cases[AT_ONCE:]
        # A controller that acts is alive: hbatch makes lists of partitions.
        write_heartbeat(site.shell.box.exchange, "act", 600.0)
        answers = site.submit("sbatch", some)
        ours = site.submit("hbatch", some)
        wrong += _compare_hbatch(some, answers, ours, site.noted, seen)
        plain, chosen = plain + answers, chosen + some
        seen["jobs"] += sum(job is not None for _, job in answers)
        seen["refused"] += sum(answer[0] != 0 for answer, _ in answers)
    for plugin in PLUGINS:
        load_plugins(site.box, site.config, plugin)
        for first in range(0, len(chosen), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            some = [replace(case, ours=[]) for case in chosen[part]]
            answers = site.submit("sbatch", some)
            wrong += _compare_plugin(plugin, some, plain[part], answers, seen)
    load_plugins(site.box, site.config)
    print(dict(seen))
    assert not wrong, f"{len(wrong)} of {dict(seen)}:\n" + "\n".join(map(str, wrong[:20]))
    assert seen["hbatch managed"] >= seen["jobs"] / 2
    assert min(seen[f"{plugin} managed"] for plugin in PLUGINS) >= seen["jobs"] / 4
    assert seen["contradicted"] <= len(chosen) / 20


def _compare_hbatch(cases, plain, ours, noted, seen):
    for case, (answer, job), (our_answer, our_job), (managed, options) in zip(
        cases, plain, ours, noted, strict=True
    ):
        if job is None or our_job is None:
            one, other = (verdict(found, managed) for found in (answer, our_answer))
            if one != other and _is_declared(one, our_answer, options):
                seen["contradicted"] += 1
            elif one != other:
                yield "hbatch", str(case), one, other
            continue
        seen["hbatch managed"] += managed
        allowed = set().union(*(ADDED[option] for option in options))
        found = differences(job, our_job, allowed)
        if managed != (decode(our_job.get("Comment", "")) is not None):
            found["Comment"] = (job.get("Comment"), our_job.get("Comment"))
        if found:
            yield "hbatch", str(case), found


def _is_declared(plain, answer, options):
    """Whether a submit ends otherwise than sbatch's for a reason that its declaration gives.

    hbatch refuses what contradicts itself; types that no node asked for has are refused by Slurm,
    as their constraint is; and GPUs that are declared only are there for ``--mem-per-gpu``.
    """
    return (
        (answer[0] == 2 and re.search(CONTRADICTED, answer[2]))
        or (answer[0] == 1 and "--constraint" in options and "node configuration" in answer[2])
        or ("did not request any GPU" in plain[2] and {"--gres", "--gpus"} & {*options})
    )


def _compare_plugin(plugin, cases, plain, ours, seen):
    for case, (answer, job), (our_answer, our_job) in zip(cases, plain, ours, strict=True):
        if job is None or our_job is None:
            one, other = (_verdict(found) for found in (answer, our_answer))
            if one != other:
                yield plugin, str(case), one, other
            continue
        managed = decode(our_job.get("Comment", "")) is not None
        seen[f"{plugin} managed"] += managed
        said = says(case)
        seen[f"{plugin} opted in"] += managed and not said
        allowed = set()
        for pattern, fields in DECLARED.items():
            allowed |= fields if managed and re.search(pattern, said) else set()
        if found := differences(job, our_job, allowed):
            yield plugin, str(case), found


def _verdict(answer):
    code, out, err = verdict(answer, managed=True)
    return code, out, "\n".join(line for line in err.splitlines() if "slurm-hadar: " not in line)
