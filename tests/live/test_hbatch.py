"""hbatch in front of the real sbatch, on a real cluster."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hadar import config
from slurm_hadar.cli.foreign_directives import translated
from slurm_hadar.cli.sbatch_parser import read_directives, read_header
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.declaration import decode
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = pytest.mark.live

WHOLE_LINES = ("Comment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "SubmitLine")
PLAIN = "#!/bin/bash\n#SBATCH -J one --comment='his own' -t 5\necho $1\nexit ${2:-0}\n"
DECLARED = (
    "#!/bin/bash\n#SBATCH -J one --comment='his own' -t 5\n"
    "#HADAR model=resnet18 types=v100,k80 gpus=1-2 checkpoint=yes\n"
    "env | grep ^HADAR_\nexit ${2:-0}\n"
)


class Shell:
    """sbatch and hbatch side by side in one folder, against one sandbox."""

    def __init__(self, box, folder):
        self.box = box
        self.folder = folder
        (folder / "plain.sh").write_text(PLAIN)
        (folder / "declared.sh").write_text(DECLARED)
        kept = ("HOME", "USER", "LANG", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | box.env

    def run(self, program, *argv, **options):
        where = str(Path(sys.prefix) / "bin" / "hbatch") if program == "hbatch" else program
        options.setdefault("stdin", subprocess.DEVNULL)
        if "input" in options:
            del options["stdin"]
        return subprocess.run(
            [where, *argv],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            **options,
        )

    def submit(self, *argv, program="hbatch", **options):
        done = self.run(program, "--parsable", *argv, **options)
        assert done.returncode == 0, done.stderr
        return re.fullmatch(r"(\d+)\n", done.stdout)[1]

    def job(self, job_id):
        fields = {}
        for line in self.box.run("scontrol", "show", "job", job_id).split("\n\n")[0].splitlines():
            key, _, value = line.strip().partition("=")
            if key in WHOLE_LINES:
                fields[key] = value
            else:
                fields |= dict(word.split("=", 1) for word in line.split() if "=" in word)
        return fields

    def begins_in(self, job_id):
        """Seconds from the submit to the earliest start, as Slurm has them."""
        field = self.job(job_id)
        return seconds(field["EligibleTime"]) - seconds(field["SubmitTime"])

    def fill(self):
        """Take all GPUs of the cluster."""
        work = ("--gres=gpu:2", "-t30", "-o/dev/null", "--wrap=sleep 600")
        filling = [self.submit(*work, program="sbatch") for _ in range(6)]
        for job_id in filling:
            self.box.wait_state(job_id, "RUNNING")
        return filling


def seconds(text):
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


@pytest.fixture
def make_shell(make_sandbox, slurm_prefix, tmp_path):
    def make(mode="act"):
        box = make_sandbox(slurm_prefix=slurm_prefix, options=SandboxOptions(mode=mode))
        write_wrapper_site(config.load(box.config_path), box.config_path)
        folder = tmp_path / "home"
        folder.mkdir()
        return Shell(box, folder)

    return make


@pytest.fixture
def shell(make_shell):
    return make_shell()


def same_words(done):
    """What both said, without the job's number and the moment."""
    numbers = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+|\b\d{3,}\b")
    return (done.returncode, numbers.sub("N", done.stdout), numbers.sub("N", done.stderr))


OWN_FIELDS = re.compile(
    r"JobId|.*Time|Priority|StdErr|StdOut|ArrayJobId|SubmitLine|Reason|JobState|LastSchedEval"
)
SUBMITS = [
    (["-H", "plain.sh"], None),
    (["-H", "--parsable", "plain.sh", "a", "b c"], None),
    (["-H", "-N2", "--gres=gpu:1", "-pgpu", "--exclusive", "plain.sh"], None),
    (["-HJ", "two", "--begin=now+100", "--no-requeue", "plain.sh"], None),
    (["-H", "--array=1-3%2", "plain.sh"], None),
    (["-H", "--wrap=hostname -s"], None),
    (["-H", "--parsable"], PLAIN),
    (["-H", "--comm=short", "--", "plain.sh", "--hadar-x"], None),
    (["-Q", "-H", "plain.sh"], None),
    (["--test-only", "plain.sh"], None),
    (["--test-only", "--gres=gpu:99", "plain.sh"], None),
    (["-p", "nowhere", "plain.sh"], None),
    (["gone.sh"], None),
    (["--nodes", "plain.sh"], None),
    (["--no-such-option"], None),
    ([], "no script\n"),
    ([], ""),
    (["--version"], None),
    (["--usage"], None),
]


def test_an_unmanaged_submit_is_sbatchs_own(shell):
    seen = []
    for argv, script in SUBMITS:
        options = {} if script is None else {"input": script}
        plain = shell.run("sbatch", *argv, **options)
        ours = shell.run("hbatch", *argv, **options)
        assert same_words(ours) == same_words(plain), argv
        numbers = [re.search(r"\d+", done.stdout) for done in (plain, ours)]
        if "-H" in argv and "-Q" not in argv:
            fields = [shell.job(number[0]) for number in numbers]
            kept = [{k: v for k, v in f.items() if not OWN_FIELDS.fullmatch(k)} for f in fields]
            assert kept[0] == kept[1], argv
            assert kept[0]["UserId"] and kept[0]["Requeue"]
            seen.append(kept[1].get("Comment"))
    assert "his own" in seen and "short" in seen


def test_the_job_sees_the_same_environment(shell):
    (shell.folder / "env.sh").write_text("#!/bin/sh\nenv\n")
    shell.env |= {"MINE": "a b", "LANG": "C"}
    for program in ("sbatch", "hbatch"):
        job_id = shell.submit("-J", "env", "-o", f"out.{program}", "env.sh", program=program)
        shell.box.wait_state(job_id)
    seen = [
        {
            line
            for line in (shell.folder / f"out.{program}").read_text().splitlines()
            if not re.match(r"SLURM_(JOB_?ID|JOB_\w+_TIME|TASK_PID|TOPOLOGY\w+)=|TMPDIR=", line)
        }
        for program in ("sbatch", "hbatch")
    ]
    assert "MINE=a b" in seen[0]
    assert seen[0] == seen[1]


def test_wait_returns_the_jobs_code(shell):
    done = shell.run("hbatch", "-W", "--parsable", "-o", "out", "declared.sh", "hi", "5")
    assert done.returncode == 5, done.stderr
    assert re.fullmatch(r"\d+\n", done.stdout)


def test_a_managed_job_gets_what_the_user_did_not_set(shell):
    write_heartbeat(shell.box.exchange, "act", 60.0)
    done = shell.run("hbatch", "-H", "--parsable", "declared.sh")
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 1
    field = shell.job(done.stdout.strip())
    assert field["Comment"].startswith("his own [hadar1 ")
    record = decode(field["Comment"])
    assert record.model == "resnet18" and record.gpus == (1, 2) and not record.lease
    assert re.fullmatch(r"gres[:/]gpu(:1)?", field["TresPerNode"])
    # No partition was named: the one that Slurm takes is not known here.
    assert (field["Partition"], field["Features"]) == ("gpu", "v100|k80")
    assert field["Requeue"] == "1"
    assert field["JobName"] == "one"


def test_a_waiting_managed_job_is_an_eligible_job_that_starts_by_itself(shell):
    write_heartbeat(shell.box.exchange, "act", 60.0)
    filling = shell.fill()
    done = shell.run("hbatch", "--parsable", "-pgpu", "-o", "out", "declared.sh")
    job_id = done.stdout.strip()
    assert done.stderr == "hbatch: the job is managed\n"
    behind = shell.submit("-pgpu", "--gres=gpu:1", "-o/dev/null", "--wrap=true", program="sbatch")
    field = shell.job(job_id)
    assert field["Partition"] == "v100,k80" and field["Features"] == "(null)"
    assert decode(field["Comment"]).partitions == ("gpu",)
    assert shell.begins_in(job_id) == 0
    # squeue shows what it waits for, and it is ahead of what came after it.
    reason = shell.box.run("squeue", "-h", "-o", "%r", "-j", job_id).strip()
    assert reason in ("Resources", "Priority", "None"), reason
    assert int(field["Priority"]) > int(shell.job(behind)["Priority"])
    # Nothing but Slurm is here to start it, on the first GPU of its list that is free.
    where = {shell.job(one)["NodeList"]: one for one in filling}
    shell.box.run("scancel", where["k1"])
    shell.box.wait_state(job_id)
    assert shell.job(job_id)["NodeList"] == "k1"
    seen = dict(line.split("=", 1) for line in (shell.folder / "out").read_text().splitlines())
    assert seen["HADAR_EXCHANGE"] == str(shell.box.exchange)
    assert seen["HADAR_CONTROLLER_UID"] == str(os.getuid())
    assert seen["HADAR_SIGNAL"] == "USR2"


def test_the_first_of_the_list_is_taken_where_several_are_free(shell):
    write_heartbeat(shell.box.exchange, "act", 60.0)
    submit = ("-pgpu", "-o/dev/null", "--gres=gpu:1", "--hadar-types=any", "--wrap=true")
    for model, node in (("ResNet-18", "v1"), ("Recommendation", "p1")):
        job_id = shell.submit(f"--hadar-model={model}", *submit)
        shell.box.wait_state(job_id)
        assert shell.job(job_id)["NodeList"] == node


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_without_a_controller_that_acts_the_partition_stays(make_shell, mode):
    shell = make_shell(mode)
    if mode == "observe":
        write_heartbeat(shell.box.exchange, "observe", 5.0)
    job_id = shell.submit("-pgpu", "-o", "out", "declared.sh")
    field = shell.job(job_id)
    assert (field["Partition"], field["Features"]) == ("gpu", "v100|k80")
    shell.box.wait_state(job_id)


def test_a_job_on_several_nodes_is_accepted_as_sbatch_would(shell):
    write_heartbeat(shell.box.exchange, "act", 60.0)
    # No member has five nodes: Slurm refuses a list of them.
    wide = ("-N5", "--gres=gpu:1", "-o/dev/null", "--wrap=true")
    refused = shell.run("sbatch", "-pv100,p100,k80", *wide)
    assert refused.returncode != 0 and "node configuration" in refused.stderr
    job_id = shell.submit("-pgpu", "--hadar-types=any", *wide)
    shell.box.wait_state(job_id)


def test_a_users_own_constraint_stands_beside_the_list(shell):
    write_heartbeat(shell.box.exchange, "act", 60.0)
    submit = ("-pgpu", "--hadar-types=any", "--gres=gpu:1", "-o/dev/null", "--wrap=true")
    job_id = shell.submit("-C", "p100|k80", *submit)
    field = shell.job(job_id)
    assert (field["Partition"], field["Features"]) == ("p100,k80", "p100|k80")
    shell.box.wait_state(job_id)


@pytest.mark.parametrize(
    ("argv", "env", "field", "value"),
    [
        (["--gres=gpu:k80:2", "--hadar-types=any"], {}, "TresPerNode", r"gres[:/]gpu:k80:2"),
        (["-C", "p100"], {}, "Features", "p100"),
        ([], {"SBATCH_CONSTRAINT": "p100"}, "Features", "p100"),
        (["--no-requeue"], {}, "Requeue", "0"),
        ([], {"SBATCH_NO_REQUEUE": ""}, "Requeue", "0"),
        (["--gpus", "2"], {}, "TresPerJob", r"gres[:/]gpu:2"),
        (["--comment=typed"], {}, "Comment", r"typed \[hadar1 .*"),
    ],
)
def test_what_the_user_set_stands(shell, argv, env, field, value):
    shell.env |= env
    job_id = shell.submit("-H", *argv, "declared.sh")
    assert re.fullmatch(value, shell.job(job_id)[field])


def test_an_array_is_declared_once_for_all_its_tasks(shell):
    write_heartbeat(shell.box.exchange, "act", 60.0)
    job_id = shell.submit("--array=1-3", "-H", "-pgpu", "declared.sh")
    field = shell.job(job_id)
    assert field["ArrayTaskId"] == "1-3" and field["Partition"] == "v100,k80"
    assert decode(field["Comment"]).gpus == (1, 2)


def test_a_managed_script_on_standard_input_arrives_whole(shell):
    job_id = shell.submit("-H", input=DECLARED)
    assert decode(shell.job(job_id)["Comment"]).model == "resnet18"
    assert shell.box.run("scontrol", "write", "batch_script", job_id, "-").rstrip("\n\0") == (
        DECLARED.rstrip("\n")
    )


def test_wrapped_commands_are_managed_by_options(shell):
    job_id = shell.submit("-H", "--hadar-model=m", "--hadar-gpus", "2", "--wrap", "hostname")
    field = shell.job(job_id)
    assert decode(field["Comment"]).model == "m"
    assert field["JobName"] == "wrap"


def test_a_heterogeneous_job_passes_with_one_line(shell):
    done = shell.run("hbatch", "-H", "-N1", ":", "-N1", "declared.sh")
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1 and "not managed" in done.stderr
    job_id = re.search(r"\d+", done.stdout)[0]
    assert "[hadar1" not in shell.job(f"{job_id}+0").get("Comment", "")


def test_nonsense_submits_nothing(shell):
    done = shell.run("hbatch", "--hadar-gpus=many", "declared.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert shell.box.run("squeue", "-h").strip() == ""


LINES = [
    "--comment=plain",
    '--comment "two words" # and a remark',
    "--comment='a # b'",
    '--comment="it\'s"',
    "--comment=a\"b c\"d'e'",
    '--comment=q\\"q',
    "--comm=cut",
    "--comment=first --comment=second",
    "-Jname --comment joined#not",
]


def test_the_scripts_lines_are_read_as_sbatch_reads_them(shell):
    for line in LINES:
        script = f"#!/bin/sh\n\n# note\n#SBATCH {line}\ntrue\n#SBATCH --comment=late\n"
        job_id = shell.submit("-H", program="sbatch", input=script)
        ours = dict(read_directives(read_header(script.encode()).words).options)
        assert ours["comment"] == shell.job(job_id)["Comment"], line


FOREIGN = [
    "#PBS -q v100 -N named -l nodes=1:gpus=2,walltime=00:07:00",
    "#PBS -l mem=2gb,select=2:ncpus=3:mpiprocs=1 -q v100",
    "#PBS -l nodes=2:ppn=3+v1 -v A=1 -W depend=afterany:1 -q v100",
    "#PBS -l naccelerators=2 -p 7\ntrue\n#PBS -q k80",
    '#BSUB -q v100 -m "v1 v2" -n 2 -x\n#PBS -q k80',
]
OF_LINES = {
    "partition": "Partition", "gpus-per-node": "TresPerNode", "gres": "TresPerNode",
    "time": "TimeLimit", "nodelist": "ReqNodeList", "job-name": "JobName", "nodes": "NumNodes",
    "ntasks": "NumTasks", "mem": "MinMemoryNode", "nice": "Nice",
}  # fmt: skip


def test_lines_of_pbs_and_lsf_are_translated_as_by_sbatch(shell):
    for lines in FOREIGN:
        body = f"#!/bin/sh\n#HADAR model=m\n{lines}\ntrue\n"
        found = dict(translated(body.encode()))
        job_id = shell.submit("-H", input=body)
        field = shell.job(job_id)
        assert decode(field["Comment"]).model == "m", lines
        assert found["partition"] == field["Partition"] == decode(field["Comment"]).partitions[0]
        for name, key in OF_LINES.items():
            if name not in found:
                continue
            shown = re.sub(r"^(\d+)-\1$", r"\1", re.sub("(gres[:/])?gpu:", "", field[key]))
            expected = {"7": "7", "2g": "2G", "v1,v2": "v[1-2]"}.get(found[name], found[name])
            assert shown == expected.removeprefix("gpu:"), (lines, name, field[key])


WORK = "#HADAR model=resnet18 types=any gpus=1-2 batch=64 samples=5e6 checkpoint=yes"


def everything(folder):
    """Every file below a folder, with its bytes; logs and what slurmctld keeps aside."""
    kept = [path for path in folder.rglob("*") if path.is_file()]
    left_out = ("log", "spool", "state", "run", "munge")
    return {p: p.read_bytes() for p in kept if not set(left_out) & set(p.relative_to(folder).parts)}


def test_a_plan_says_where_the_job_would_go_and_submits_nothing(shell):
    write_heartbeat(shell.box.exchange, "act", 60.0)
    script = f"#!/bin/sh\n#SBATCH -t 60 -p gpu\n{WORK}\ntrue\n"
    (shell.folder / "work.sh").write_text(script)
    blocker = shell.submit(
        "-t30",
        "-wv1,v2",
        "-N2",
        "--gres=gpu:2",
        "-o/dev/null",
        "--wrap=sleep 600",
        program="sbatch",
    )
    shell.box.wait_state(blocker, "RUNNING")
    before = everything(shell.box.folder)
    done = shell.run("hbatch", "--hadar-plan", "--json", "work.sh")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    answer = json.loads(done.stdout)
    assert (answer["version"], answer["command"]) == (1, "hbatch --hadar-plan")
    plan = answer["result"]
    assert plan["argv"][0] == "sbatch" and "--partition=v100,p100,k80" in plan["argv"]
    assert plan["slurm"]["partition"] == "p100"
    assert plan["managed"] and plan["controller_active"] and plan["submitted"] is False
    # The V100s are taken for half an hour, and two P100s do it in time.
    assert plan["policy"]["gpus"] == {"p100": 2}
    rows = {(row["gpu_type"], row["gpus"]): row for row in plan["types"]}
    assert rows.keys() == {(kind, n) for kind in ("v100", "p100", "k80") for n in (1, 2)}
    for row in rows.values():
        assert row["takes_s"] == pytest.approx(5e6 / row["samples_per_s"])
        ends = row["start_s"] + min(row["takes_s"], plan["time_limit_s"])
        assert row["finish_s"] == pytest.approx(ends)
        assert row["in_limit"] is (row["takes_s"] <= 3600)
    assert rows["v100", 2]["start_s"] == pytest.approx(plan["now_s"] + 1800, abs=120)
    assert rows["p100", 2]["start_s"] == pytest.approx(plan["now_s"], abs=60)
    assert rows["p100", 2]["policy"] and not rows["v100", 2]["policy"]
    text = shell.run("sh", "-c", f"{sys.prefix}/bin/hbatch --hadar-plan work.sh | true")
    assert (text.returncode, text.stderr) == (0, ""), "its reader has gone"
    text = shell.run("hbatch", "--hadar-plan", input=script)
    assert "Nothing is submitted." in text.stdout and "2 x p100 (policy)" in text.stdout
    assert shell.box.run("squeue", "-h", "-o", "%A").split() == [blocker]
    assert everything(shell.box.folder) == before
