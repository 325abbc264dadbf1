"""hbatch and sbatch agree on a thousand submits: acceptance, exit code, what stderr says."""

import base64
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from submit_lines import Submit, submits

from slurm_hadar import config
from slurm_hadar.cli.plan_of_job_request import Asked, job_of
from slurm_hadar.cli.sbatch_words import read_argv
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.declaration import decode
from slurm_hadar.runtime.heartbeat import write_heartbeat
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = pytest.mark.live

SEED = 6
COUNT = 1000
COUNT_ELSEWHERE = 200
"""On a second Slurm."""
AS_PROCESSES = 25
PASSED_ON = "the job is not managed: .*(heterogeneous|may be short|#PBS|unknown to hbatch|cluster)"
"""What hbatch says of a declared job that it does not manage."""
HERE = Path(__file__).parent
HBATCH = str(Path(sys.prefix) / "bin" / "hbatch")


class Shell:
    """Submits of both kinds in one folder."""

    def __init__(self, box, folder):
        self.box = box
        self.folder = folder
        kept = ("HOME", "USER", "LANG", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | box.env
        self.runner = subprocess.Popen(
            [sys.executable, str(HERE / "submit_runner.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            text=True,
        )

    def prepare(self, submit):
        """The folder as the submit needs it, its environment and its standard input."""
        script = self.folder / "job.sh"
        script.unlink(missing_ok=True)
        if submit.script is not None and not submit.typed:
            script.write_bytes(submit.script)
        return self.env | submit.env, (submit.script or b"") if submit.typed else b""

    def ask(self, program, submit, *options):
        """Exit code, stdout and stderr, by the runner."""
        env, stdin = self.prepare(submit)
        ours = submit.ours if program == "hbatch" else []
        case = {
            "program": program,
            "argv": [*options, *ours, *submit.argv],
            "env": env,
            "stdin": base64.b64encode(stdin).decode(),
        }
        print(json.dumps(case), file=self.runner.stdin, flush=True)
        return tuple(json.loads(self.runner.stdout.readline()))

    def process(self, submit, *options):
        """The same of hbatch as it is installed."""
        env, stdin = self.prepare(submit)
        done = subprocess.run(
            [HBATCH, *options, *submit.ours, *submit.argv],
            env=env,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            timeout=60,
        )
        said = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return (done.returncode, *said)

    def close(self):
        self.runner.stdin.close()
        self.runner.wait(60)


@pytest.fixture(scope="module")
def shell(slurm_prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with Sandbox.up(folder / "box", slurm_prefix=slurm_prefix, mode="act") as box:
        write_wrapper_site(config.load(box.config_path), box.config_path)
        made = Shell(box, folder)
        yield made
        made.close()


def told(stderr):
    """sbatch's words, without the job's number and the moment."""
    lines = [line for line in stderr.splitlines() if not line.startswith("hbatch: ")]
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "TIME", "\n".join(lines))
    return re.sub(r"\bJob \d+", "Job N", text)


def is_managed(stderr):
    return "hbatch: the job is managed" in stderr or "left alone, as its Comment says" in stderr


def verdict(answer, managed):
    """Exit code, stdout, stderr; of what -v tells only what does not list the options."""
    code, out, err = answer
    text = told(err)
    if managed:
        text = "\n".join(
            line for line in text.splitlines() if not re.match(r"sbatch: (\S+ +: |-)", line)
        )
    return code, out, text


def test_a_thousand_submits_are_judged_alike(shell, slurm_prefix):
    cases = submits(COUNT_ELSEWHERE if slurm_prefix else COUNT, SEED)
    accepted = rejected = managed = 0
    for number, case in enumerate(cases):
        plain = shell.ask("sbatch", case, "--test-only")
        ours = shell.ask("hbatch", case, "--test-only")
        is_ours = is_managed(ours[2])
        managed += is_ours
        assert verdict(ours, is_ours) == verdict(plain, is_ours), f"{number}: {case}"
        if number % (len(cases) // AS_PROCESSES) == 0:
            again = shell.process(case, "--test-only")
            assert verdict(again, is_ours) == verdict(plain, is_ours), f"{number}: {case}"
        if plain[0] == 0 and not plain[1] and case.declares:
            assert is_ours or re.search(PASSED_ON, ours[2]), f"{number}: {case}: {ours}"
        accepted += plain[0] == 0
        rejected += plain[0] != 0
    assert min(accepted, rejected) >= 0.3 * len(cases), (accepted, rejected)
    assert managed >= 0.05 * len(cases)


PLANS = 16
SPECIAL = {
    ("-Q", "job.sh"): "would start it now",
    ("--gres=gpu:99", "job.sh"): "would refuse it",
    ("--gres=gpu:1", "-a1-3", "job.sh"): "one task of the array",
    ("-G1", "--begin=now+100", "job.sh"): "its owner set a begin time",
    ("-wv1", "--gres=gpu:1", "job.sh"): "it names its nodes itself",
    ("-N1", ":", "-N1", "job.sh"): "heterogeneous",
    ("--gpus=v100:1", "job.sh"): "1 x v100 on v",
    ("-Ck80", "-G1", "-t600", "--hadar-types=v100,k80", "job.sh"): "policy   1 x k80 on k",
    ("--hadar-off", "job.sh"): "off=yes is declared",
}
DECLARED = b"#!/bin/sh\n#HADAR model=resnet18 types=any samples=5e6 checkpoint=yes\ntrue\n"


def test_a_plan_returns_what_sbatch_would_and_submits_nothing(shell):
    planned = 0
    for number, case in enumerate(submits(PLANS, SEED + 2)):
        if "--json" in case.argv:
            # Behind --hadar-plan this word is ours.
            continue
        plain = shell.ask("sbatch", case, "--test-only")
        ours = shell.ask("hbatch", case, "--hadar-plan", "--json")
        assert ours[0] == plain[0], f"{number}: {case}: {ours}"
        assert "Traceback" not in ours[2]
        if ours[1].startswith("{"):
            planned += 1
            result = json.loads(ours[1])["result"]
            assert bool(result["slurm"]["refused"]) is (plain[0] != 0), f"{number}: {case}"
    assert planned >= PLANS / 3
    for argv, says in SPECIAL.items():
        code, out, err = shell.ask("hbatch", Submit(list(argv), script=DECLARED), "--hadar-plan")
        assert says in out and "Traceback" not in err, (argv, out, err)
        assert (code != 0) is ("refuse" in says)
        assert "never" not in out, (argv, out)
    unclear = shell.ask("hbatch", Submit(["--spank", "x", "job.sh"]), "--hadar-plan")
    assert unclear[2].startswith("hbatch: there is no plan: --spank is unknown")
    assert shell.box.run("squeue", "-h") == ""


SHOWN = [
    "name", "partitions", "time_limit_s", "request", "node_count", "tasks", "cpus",
    "cpus_per_task", "mem_per_cpu_mb", "mem_per_node_mb", "features", "required_nodes",
    "excluded_nodes", "requeue", "exclusive", "held", "reservation", "dependency", "account", "qos",
]  # fmt: skip
LIKE_SLURM = [
    ["-t10"], ["-N2", "--gres=gpu:1"], ["-c2"], ["-G4"], ["--mem=4G", "-c3"],
    ["--mem-per-cpu=500"], ["-wv[1-2]"], ["-xk1", "--no-requeue"], ["--exclusive"],
    ["-pv100,k80", "-Jx"], ["-n8", "--ntasks-per-node=4"], ["--gpus-per-node=k80:1", "-N2"],
    ["--gpus-per-task=1", "-n2"], ["-Cv100|k80", "-c4"], ["-N2", "-n4", "--gpus=v100:2"],
    ["-N2", "--ntasks-per-node=2", "-c3"], ["--mem=0"], ["-A", "science"],
]  # fmt: skip


def test_a_plans_job_is_the_one_that_slurm_would_show(shell):
    cluster = open_cluster(config.load(shell.box.config_path).slurm)
    partitions = {partition.name: partition for partition in cluster.read_partitions()}
    submitted = {}
    for argv in LIKE_SLURM:
        submit = Submit(["-H", *argv, "job.sh"], script=b"#!/bin/sh\ntrue\n")
        code, out, err = shell.ask("sbatch", submit, "--parsable")
        assert code == 0, err
        submitted[out.strip()] = argv
    shown = {job.id: job for job in cluster.read_jobs(list(submitted))}
    shell.box.run("scancel", *submitted)
    settings = cluster.read_config()
    for number, argv in submitted.items():
        held = dict(read_argv(["-H", *argv]).options)
        asked = Asked(held, None, "job.sh", os.getuid(), "", settings=settings)
        planned = job_of(asked, partitions, time.time(), 1)
        wrong = {
            name: (getattr(planned, name), getattr(shown[number], name))
            for name in SHOWN
            if getattr(planned, name) != getattr(shown[number], name)
        }
        assert wrong == {}, argv


SUBMITTED = 25
GROUPED = 120
WIDE = [["-N3", "--gres=gpu:1"], ["-G5"], ["-n70"], [], [], []]
"""More than one partition per GPU type has, and nothing."""
LISTED = [
    Submit(["-pgpu", "-G1", "job.sh"], ["--hadar-checkpoint=yes"], script=b"#!/bin/sh\ntrue\n"),
    Submit([], [], {"SBATCH_PARTITION": "gpu"}, b"#!/bin/sh\n#HADAR gpus=1-2 types=v100\n", True),
]
"""Few of the others get a list of partitions by chance."""
FIELD_OF = {
    "--gres": ("TresPerNode", "TRES", "ReqTRES"),
    "--constraint": ("Features",),
    "--requeue": ("Requeue",),
    "--partition": ("Partition",),
    "--open-mode": (),
}
"""Option that hbatch adds -> the fields of the job that say it."""
OWN = {"JobId", "ArrayJobId", "SubmitTime", "AccrueTime", "LastSchedEval", "SubmitLine"}
"""Fields of which each job has its own, whoever submits it."""
WHOLE_LINES = (
    "Comment",
    "Command",
    "WorkDir",
    "StdErr",
    "StdIn",
    "StdOut",
    "SubmitLine",
    "JobName",
)
CLOCKS_S = 5
"""Beside what lay between the two submits."""
SETTLED_S = 60


def fields(shell, job_id):
    """The job as Slurm shows it, its number taken out."""
    text = shell.box.run("scontrol", "show", "job", job_id).split("\n\n")[0]
    found = {}
    for line in text.splitlines():
        line = re.sub(
            rf"^JobId={job_id} (.*)JobName=", rf"JobId={job_id} \1\nJobName=", line.strip()
        )
        for part in line.split("\n"):
            key = part.partition("=")[0]
            pairs = [part] if key in WHOLE_LINES else [w for w in part.split(" ") if "=" in w]
            found |= {k: nameless(v, job_id) for k, _, v in (p.partition("=") for p in pairs)}
    return found


def nameless(text, job_id):
    """Without the numbers of the job and, in a heterogeneous one, of those that follow it."""
    for following in range(4):
        text = re.sub(rf"(?<!\d){int(job_id) + following}(?!\d)", f"N+{following}", text)
    return text


def moment(text):
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def is_equal(key, one, other, apart_s):
    """``apart_s``: seconds from one submit to the other."""
    if one == other:
        return True
    if key == "Priority":
        # priority/basic counts down from job to job.
        return int(one) - int(other) in range(1, 3)
    dates = [re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+", value) for value in (one, other)]
    return all(dates) and abs(moment(one) - moment(other)) <= CLOCKS_S + apart_s


def added(stderr):
    """Options that hbatch says it added."""
    line = next((line for line in stderr.splitlines() if "the job is managed; added" in line), "")
    return re.findall(r"(--[a-z-]+)(?==|\s)", line.partition("; added ")[2].partition("; ")[0])


def submit_both(shell, case):
    """Both jobs' numbers and hbatch's stderr; None where there is no job, as both say alike."""
    answers = [shell.ask(program, case) for program in ("sbatch", "hbatch")]
    numbers = [re.fullmatch(r"(?:Submitted batch job )?(\d+)\n", out) for _, out, _ in answers]
    if not all(numbers):
        # Some of what --test-only lets pass is refused at the submit.
        managed = is_managed(answers[1][2])
        assert verdict(answers[0], managed) == verdict(answers[1], managed), case
        return None
    return [number[1] for number in numbers], answers[1][2]


def differences(shell, numbers, err):
    """What two jobs differ in and should not, once Slurm has looked at both."""
    end = time.monotonic() + SETTLED_S
    while (wrong := differ_now(shell, numbers, err)) and time.monotonic() < end:
        time.sleep(0.2)
    return wrong


def differ_now(shell, numbers, err):
    plain, ours = (fields(shell, number) for number in numbers)
    script, same = (
        shell.box.run("scontrol", "write", "batch_script", number, "-") for number in numbers
    )
    apart_s = abs(moment(plain["SubmitTime"]) - moment(ours["SubmitTime"]))
    meant = {name for option in added(err) for name in FIELD_OF[option]} | OWN
    if is_managed(err):
        meant.add("Comment")
        assert ours["Comment"].startswith(plain.get("Comment", "") + " " * ("Comment" in plain))
        assert decode(ours["Comment"]) is not None
    wrong = {
        key: (plain.get(key), ours.get(key))
        for key in (plain.keys() | ours.keys()) - meant
        if not is_equal(key, plain.get(key, ""), ours.get(key, ""), apart_s)
    }
    return wrong | ({} if script == same else {"script": (script, same)})


def waits(case):
    """Whether a submit of it would wait for the end of the job, or say no number."""
    script = (case.script or b"").decode(errors="replace")
    text = " ".join([*case.argv, *case.env, script])
    return re.search(r"--?(w|W|wa|wait|Q|qu\w*)\b|SBATCH_WAIT|-\w*[WQ]", text) is not None


def test_a_list_is_accepted_where_the_partition_is(shell):
    heartbeat = shell.box.exchange / "heartbeat.json"
    listed = refused = 0
    for number, case in enumerate(submits(GROUPED, SEED + 3)):
        # Slurm 24.11.5: slurmctld ends on --spread-job with --gpus.
        if waits(case) or re.search("--spr|SPREAD_JOB", str(case)):
            continue
        case.env["SBATCH_PARTITION"] = "gpu"
        case.ours = ["--hadar-gpus=1", "--hadar-types=any", *WIDE[number % len(WIDE)]]
        heartbeat.unlink(missing_ok=True)
        # Of a held job Slurm does not look whether it fits.
        typed = shell.ask("hbatch", case)
        write_heartbeat(shell.box.exchange, "act", 600.0)
        ours = shell.ask("hbatch", case)
        if "--partition" not in added(ours[2]):
            continue
        assert "--partition" not in added(typed[2])
        listed += 1
        refused += typed[0] != 0
        assert ours[0] == typed[0], f"{number}: {case}: {typed} {ours}"
    shell.box.run("scancel", "--user", str(os.getuid()))
    assert listed >= GROUPED / 4 and refused >= 3, (listed, refused)


def test_what_both_submit_is_the_same_job(shell):
    # Alive for three intervals: longer than all this takes.
    write_heartbeat(shell.box.exchange, "act", 600.0)
    for partition in shell.box.layout.all_partitions:
        # Jobs are taken and none starts, so that all of a job can be compared in peace.
        shell.box.run("scontrol", "update", f"PartitionName={partition.name}", "State=DOWN")
    done = managed = listed = 0
    for number, case in enumerate([*LISTED, *submits(COUNT, SEED + 1)]):
        if done == SUBMITTED:
            break
        if waits(case) or shell.ask("sbatch", case, "--test-only")[0]:
            continue
        pair = submit_both(shell, case)
        if pair is None:
            continue
        assert differences(shell, *pair) == {}, f"{number}: {case}"
        done += 1
        managed += is_managed(pair[1])
        listed += "--partition" in added(pair[1])
    shell.box.run("scancel", "--user", str(os.getuid()))
    assert done == SUBMITTED and managed >= 3 and listed >= len(LISTED)
