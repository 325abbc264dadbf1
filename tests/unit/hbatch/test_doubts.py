"""Declarations that cannot be meant as they stand: an error where it is impossible, a line where it
is doubtful, and not a word about what only looks alike."""

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forks import Forks
from test_hbatch_program import Place, lines

MODELS = {"models": ["resnet18", "resnet50", "lstm"], "backfill": ["spare"], "chain": ["long"]}
SINFO = '#!/bin/sh\nprintf "%s\\n" "v1|gpu:v100:4" "v2|gpu:v100:4" "v1|gpu:v100:4" "k1|gpu:k80:4"\n'


HBATCH = Path(sys.executable).parent / "hbatch"


class ForkedPlace(Place):
    """Its hbatch is a fork of a process that has imported it: hundreds run here, and what they say
    does not depend on their start, which ``test_hbatch_program.py`` is about."""

    forks: Forks

    def run(self, *argv, **options):
        assert not options
        self.out.unlink(missing_ok=True)
        started = self.forks.start(HBATCH, argv, self.env, self.folder, text=b"")
        out, err = started.communicate(60)
        assert b"Traceback" not in err
        done: Any = subprocess.CompletedProcess(argv, started.returncode, out, err)
        done.seen = self.recorded()
        return done


@pytest.fixture(scope="module", autouse=True)
def forks():
    late = ("additions", "hbatch", "node_fit", "partition_list", "submit_doubts", "wrapper_site")
    modules = (f"slurm_hadar.cli.{name}" for name in late)
    with Forks(*modules, "difflib", "json", "subprocess", isolated=True) as ForkedPlace.forks:
        yield


@pytest.fixture
def place(tmp_path):
    found = ForkedPlace(tmp_path)
    sinfo = found.bin / "sinfo"
    sinfo.write_text(SINFO)
    sinfo.chmod(0o755)
    return found


def submitted(place, text, *argv, **site):
    place.site(**{**MODELS, **site})
    return place.run(*argv, place.script(f"#!/bin/sh\n{text}\ntrue\n"))


def doubts(done):
    return [line for line in lines(done) if "the job will be managed" not in line]


@pytest.mark.parametrize(
    ("text", "argv", "says"),
    [
        ("#HADAR gpus=1 epochs=3", [], "dataset_size="),
        ("#HADAR gpus=1 dataset_size=3", [], "epochs="),
        ("#HADAR gpus=1 gpu_mem=12", [], "gpu_mem=12G"),
        ("#HADAR gpus=1", ["--hadar-gpu_mem=12"], "gpu_mem=12G"),
        ("#HADAR gpus=1 mem=8-32", [], "mem=8G-32G"),
        ("#HADAR gpus=1 backfill=yes", ["-p", "spare"], "checkpoint=yes"),
        ("#HADAR gpus=1 backfill=yes checkpoint=yes", [], "spare"),
        ("#HADAR gpus=1 max_requeues=3 checkpoint=yes", ["-p", "long"], ""),
        ("#HADAR gpus=1 max_requeues=3 checkpoint=yes", ["-p", "long,v100"], "partition long"),
        ("#HADAR gpus=1 max_requeues=3 checkpoint=restart lose=9", ["-p", "long"], "=signal"),
        ("#HADAR gpus=1 checkpoint=restart", [], "without lose=SECONDS"),
        (
            "#HADAR gpus=1 checkpoint=signal checkpoint_exit_code=85\nsrun train",
            ["--wait"],
            "--wait returns when the job first leaves",
        ),
        ("#HADAR gpus=8,16 checkpoint=yes", ["-G8"], "may have has more than 4 GPUs"),
        ("#HADAR gpus=4,8 checkpoint=yes", ["--gres=gpu:4"], ""),
        ("#HADAR types=k80 gpus=8,16", ["-G8"], "more than 4"),
        (
            "#HADAR gpus=1-4",
            [],
            "of gpus=1-4 the job keeps 1: only a move changes the number, and it declares no "
            "checkpoint; add checkpoint=yes, or the way in which it saves by itself",
        ),
        ("#HADAR gpus=1-4", ["--gres=gpu:2"], "of gpus=1-4 the job keeps 2: only a move"),
        ("#HADAR gpus=2,4", ["--gres=gpu:4"], "of gpus=2,4 the job keeps 4: only a move"),
        ("#HADAR gpus=1-4", ["-n1", "--gpus-per-task=1"], ""),
        ("#HADAR gpus=1-4 checkpoint=yes", [], ""),
        (
            "#HADAR gpus=1-4 pin=yes checkpoint=yes",
            [],
            "keeps 1: only a move changes the number, and it is pinned; remove pin=yes",
        ),
        (
            "#HADAR gpus=1-4 checkpoint=yes",
            ["--gres=gpu:v100:1"],
            "keeps 1: --gres=gpu:v100:1 "
            "names a GPU type, and Slurm changes no such request; write types=v100 in its place",
        ),
        ("#HADAR gpus=4-4", ["--gres=gpu:4"], ""),
        ("#HADAR gpus=4,8", ["-N2", "--gres=gpu:2"], "on 2 nodes the job keeps"),
        ("#HADAR gpus=8,16", ["-N2", "--gres=gpu:4", "--exclusive"], ""),
        ("#HADAR gpus=4,16", ["-N2", "--gres=gpu:4", "--exclusive"], "2 whole nodes have 8 GPUs"),
        ("#HADAR gpus=4,8 nodes=1-2 checkpoint=yes", ["-G4", "-N1-2"], ""),
        ("#HADAR gpus=1 types=any\n#HADAR types=k80", [], "types=any in line 2 of"),
        ("#HADAR gpus=1 types=any\n#HADAR types=any", [], ""),
        ("#HADAR gpus=1 types=any", ["--hadar-types=k80"], ""),
        ("#HADAR types=v10O,k80 gpus=1", [], "did you mean v100?"),
        ("#HADAR types=v100,p10 gpus=1", [], "types=p10 has no effect: this site has v100, k80"),
        ("#HADAR gpus=8", ["--gres=gpu:1"], "may have has more than 4 GPUs"),
        (
            "#HADAR gpus=5-8",
            [],
            "gpus=5 is asked of Slurm, and no node that the job may have has more than 4",
        ),
        ("#HADAR gpus=5-8 checkpoint=yes", ["-G8"], ""),
        ("#HADAR gpus=5-8", ["-G8"], "of gpus=5-8 the job keeps 8"),
        (
            "#HADAR gpus=1-64 checkpoint=yes",
            [],
            "of gpus=1-64 the job gets at most 4: no node that it may have",
        ),
        ("#HADAR gpus=2-6 checkpoint=yes", [], "of gpus=2-6 the job gets at most 4"),
        # To ask for the nodes takes as long as all the rest.
        ("#HADAR gpus=1-6 checkpoint=yes", [], ""),
        ("#HADAR gpus=1-64 nodes=1-8 checkpoint=yes", ["-G4", "-N1-8"], ""),
        ("#HADAR gpus=1-64 checkpoint=yes", ["-G8"], ""),
        ("#HADAR gpus=1-40 checkpoint=yes", ["-G1", "-N1"], "of gpus=1-40 the job gets at most 4"),
        ("#HADAR gpus=5-8 checkpoint=yes", ["-G8", "-N1"], "gpus=5-8 has no effect: no node that"),
        ("#HADAR gpus=3", ["--gres=gpu:3"], ""),
        ("#HADAR gpus=8", ["-N2", "--gres=gpu:2"], "on 2 nodes the job keeps"),
        ("#HADAR gpus=1-8", ["-N2", "--gres=gpu:2"], "on 2 nodes the job keeps"),
        ("#HADAR gpus=4", ["-N2", "--gres=gpu:2"], ""),
        ("#HADAR types=any", ["--exclusive", "--gres=gpu:1"], "declare gpus=4"),
        ("#HADAR types=any", ["--exclusive", "--gres=gpu:4"], ""),
        ("#HADAR types=any gpus=1-6", ["--exclusive", "--gres=gpu:1"], ""),
        ("#HADAR types=any gpus=4", ["--exclusive", "--gres=gpu:1"], ""),
        ("#HADAR gpus=6", ["-N2", "--exclusive", "--gres=gpu:2"], "2 whole nodes have 8 GPUs"),
        ("#HADAR types=k80", ["-N2", "--exclusive", "--gres=gpu:2"], ""),
        ("#HADAR types=any", ["--exclusive=user", "--gres=gpu:1"], "so the job is not steered"),
        ("#HADAR gpus=1", ["-w", "v1"], "names the job's nodes, so the job is not steered"),
        ("#HADAR gpus=1", ["--nodefile=n"], "so the job is not steered"),
        ("#HADAR types=any", ["-N2", "-G4"], "--gpus=4 leaves to Slurm how many GPUs each node"),
        ("#HADAR types=any", ["-n3", "--gpus-per-task=1"], "ask for --gpus-per-node"),
        ("#HADAR gpus=1", ["-x", "v1"], ""),
        (
            "#HADAR types=any checkpoint=yes",
            ["-N2", "--gres=gpu:1", "--switches=1@2:00"],
            "so it is not moved (pin=yes)",
        ),
        ("#HADAR types=any checkpoint=yes", ["-N1", "--gres=gpu:1", "--switches=1"], ""),
        ("#HADAR types=any", ["-N2", "--gres=gpu:1", "--switches=1"], ""),
        ("#HADAR gpus=1", ["--reservation=r"], "the job is not steered in a reservation"),
        ("#HADAR model=a", ["--gres=gpu:v100:1,gpu:k80:1"], "declare types=v100,k80"),
        ("#HADAR types=v100", ["-C", "k", "--gres=gpu:1"], "allows k80 only"),
        ("#HADAR types=v100", ["-C", "k|v", "--gres=gpu:1"], ""),
        ("#HADAR types=v100", ["-C", "ib", "--gres=gpu:1"], ""),
        ("#HADAR gpus=1 checkpoint=restart lose=60", [], ""),
        ("#HADAR gpus=1 checkpoint=signal\nsrun a", [], ""),
        (
            "#HADAR gpus=1 checkpoint=signal\ntrap x USR1\na &\nwait",
            ["--signal=B:USR1@60"],
            "",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap '\nx\n' SIGUSR1\na &\nwait",
            [],
            "",
        ),
        ("#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap x 10\na & wait", [], ""),
        ("#HADAR gpus=1 checkpoint=signal signal=B:USR1\n exec a", [], ""),
        ("#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap x USR1\na", [], "with & and wait"),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap 'echo s; exit 1' USR1\na & wait",
            [],
            "its trap for USR1 ends the job, and nothing requeues it",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\nsave() {\n  kill $c\n  exit 0\n}\n"
            "trap save TERM SIGUSR1\na & wait",
            [],
            "or declare checkpoint_exit_code=",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\nsave() {\n  scontrol requeue 1\n"
            "  exit\n}\ntrap save USR1\na & wait",
            [],
            "",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1 checkpoint_exit_code=85\n"
            "trap 'exit 85' USR1\na & wait",
            [],
            "",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap 'exit' TERM\ntrap x USR1\n"
            "a & wait",
            [],
            "",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap 'a' TERM\ntrap 'exit' EXIT\n"
            "trap 'save' USR1\na & wait",
            [],
            "",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap 'save || exit 1' USR1\na & wait",
            [],
            "",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap 'sbatch $0; exit' USR1\na & wait",
            [],
            "",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap x USR2\na & wait",
            [],
            "it would end the job",
        ),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\n# a trap for USR1\necho mousetrap",
            [],
            "it would end the job",
        ),
        ("#HADAR gpus=1 checkpoint=signal", [], "write signal=B:USR2"),
        ("#HADAR gpus=4,8", ["--gres=gpu:4"], "of gpus=4,8 the job keeps 4"),
        ("#HADAR gpus=4,8", ["--gres=gpu:6"], "gpus=4,8 is declared"),
        ("#HADAR gpus=1 checkpoint=signal", ["--signal=B:USR1"], "it would end the job"),
        ("#HADAR gpus=1 checkpoint=signal signal=F:USR1\na", [], "write trap '' USR1 above"),
        ("#HADAR gpus=1 checkpoint=signal signal=F:USR1\ntrap '' USR1\na", [], ""),
        ("#HADAR gpus=1 checkpoint=signal signal=F:USR1\nexec a", [], ""),
        ("#HADAR gpus=1 checkpoint=signal signal=F:WINCH\na", [], ""),
        ("#HADAR gpus=1 checkpoint=signal signal=B:USR1\nsrun a", [], "write signal=USR1, which"),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap '' USR1\nsrun a",
            [],
            "which ignores it (trap ''), so the training does not hear it; write signal=USR1,",
        ),
        ("#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap '' USR1\nexec a", [], ""),
        (
            "#HADAR gpus=1 checkpoint=signal signal=B:USR1\ntrap '' USR1\ntrap x USR1\na & wait",
            [],
            "",
        ),
        ("#HADAR gpus=1 checkpoint=signal\nmpirun a", [], ""),
        # The runtime hears the signal to steps, or looks at its plan file.
        ("#HADAR gpus=1 checkpoint=yes\nsrun a", [], ""),
        ("#HADAR gpus=1 checkpoint=yes\na", [], ""),
        ("#HADAR gpus=1 checkpoint=yes\nsrun a", ["--signal=USR2@60"], ""),
        (
            "#HADAR gpus=1 checkpoint=yes\nsrun a",
            ["--signal=B:USR2@60"],
            "--signal=B:USR2@60 reaches the batch shell, and the script has neither a trap for it "
            "nor an exec of the training: it would end the job; write --signal=USR2@60, which",
        ),
        ("#HADAR gpus=1 checkpoint=yes\na", ["--signal=B:USR2@60"], "write exec before the"),
        ("#HADAR gpus=1 checkpoint=yes\ntrap '' USR2\nexec a", ["--signal=B:USR2@60"], ""),
        ("#HADAR gpus=1 checkpoint=yes signal=B:USR1\nsrun a", [], "write signal=USR1, which"),
        ("#HADAR gpus=1\nsrun a", ["--signal=B:USR2@60"], ""),
        ("#HADAR gpus=1 checkpoint=yes lose=60", [], "lose=60 has no effect"),
        ("#HADAR gpus=1 checkpoint=yes checkpoint_exit_code=85", [], "checkpoint=signal"),
        ("#HADAR gpus=1 checkpoint=yes progress={samples}", [], "progress has no effect"),
        ("#HADAR gpus=1 checkpoint=watch:/x/a*.pt lose=60", [], ""),
        (
            "#HADAR gpus=1 backfill=yes checkpoint=signal signal=F:USR1\nexec a",
            ["-p", "spare"],
            "checkpoint=yes",
        ),
        ("#HADAR gpus=1 signal=USR1", [], "signal=USR1 has no effect without checkpoint=signal"),
        ("#HADAR gpus=1 checkpoint=restart lose=9 signal=USR1", [], "signal=USR1 has no effect"),
        ("#HADAR gpus=1 checkpoint=yes signal=USR1", [], ""),
        (
            "#HADAR gpus=1 batch=64:512 checkpoint=signal signal=F:USR1\nexec a",
            [],
            "batch=64:512 has no effect with checkpoint=signal",
        ),
        ("#HADAR gpus=1 batch=64 checkpoint=signal signal=F:USR1\nexec a", [], ""),
        ("#HADAR gpus=1 batch=64:512 checkpoint=yes", [], ""),
        (
            "#HADAR gpus=1 checkpoint=signal signal=F:USR1\nexec a",
            ["--no-requeue"],
            "--no-requeue keeps",
        ),
        ("#HADAR gpus=1 checkpoint=yes\n#SBATCH --no-requeue", [], "--no-requeue keeps"),
        ("#HADAR gpus=1", ["--no-requeue"], ""),
        # The command line has the last word.
        ("#HADAR gpus=1 checkpoint=yes\n#SBATCH --requeue", ["--no-requeue"], "--no-requeue keeps"),
        ("#HADAR gpus=1 checkpoint=yes\n#SBATCH --no-requeue", ["--requeue"], ""),
        (
            "#HADAR gpus=1 checkpoint=watch:/ck",
            ["--open-mode=truncate"],
            "--open-mode=truncate: a move writes the job's output file anew",
        ),
        ("#HADAR gpus=1 checkpoint=yes", ["--open-mode=t"], "output file anew"),
        ("#HADAR gpus=1 checkpoint=yes", ["--open-mode=append"], ""),
        ("#HADAR gpus=1", ["--open-mode=truncate"], ""),
        ("#HADAR gpus=1 model=restnet18", [], "resnet18"),
        ("#HADAR gpus=1 model=ResNet-180", [], ""),
        ("#HADAR gpus=4", ["--gres=gpu:1"], "gpus=1"),
        ("#HADAR gpus=1-2", ["--gpus=4"], "gpus=4"),
        ("# HADAR gpus=1", [], "#HADAR"),
        ("#HADAR: gpus=1", [], "#HADAR"),
        ("#hadar gpus=1 checkpoint=yes", [], "#HADAR"),
        ("  #HADAR gpus=1", [], "#HADAR"),
        ("#HADR gpus=1 types=any", [], "#HADAR"),
        ("#HADDAR types=any", [], "#HADAR"),
        ("#HADAR gpus=1 model=resnet51", [], "did you mean resnet50?"),
        ("#HADAR gpus=1 model=ResNet-81", [], "did you mean resnet18?"),
        ("#HADAR gpus=1 model=resnet82", [], ""),
        ("#HADAR gpus=1 tasks=8 checkpoint=yes", [], "tasks=8 has no effect without fork=1-N"),
        ("#HADAR gpus=1 fork=1-4 tasks=8 checkpoint=yes", [], ""),
        ("#HADAR gpus=1 fork=1-4", [], "fork=1-4 has no effect without checkpoint=yes"),
        ("#HADAR fork=1-4 checkpoint=yes", ["-G1"], "fork=1-4 has no effect with --gpus=1"),
        ("#HADAR fork=1-4 checkpoint=yes", ["--gpus-per-node=1"], ""),
        ("#HADAR gpus=1 nodes=1-4 checkpoint=yes", [], "nodes=1-4 has no effect without"),
        ("#HADAR nodes=1-4 checkpoint=yes", ["--gres=gpu:1"], "nodes=1-4 has no effect without"),
        ("#HADAR gpus=1 nodes=1-4 checkpoint=yes", ["-N1-4"], ""),
        ("#HADAR nodes=1-4 checkpoint=yes", ["-G4", "-N1-4"], ""),
        ("#HADAR gpus=1 nodes=1-4 backfill=yes checkpoint=yes", ["-p", "spare"], ""),
        ("#HADAR gpus=1 wait=60", [], "wait=60 has no effect without samples=N"),
        ("#HADAR gpus=1 wait=60 samples=5", [], ""),
        ("#HADAR model=a\ntrue\n#HADAR gpus=1", ["--gres=gpu:1"], "first command"),
        ("true\n#HADAR gpus=1", [], "first command"),
    ],
)
def test_what_is_doubtful_is_said_in_one_line_with_the_nearest_word(place, text, argv, says):
    done = submitted(place, text, *argv)
    assert done.returncode == 0 and done.seen is not None
    if not says:
        assert doubts(done) == []
        return
    (line,) = doubts(done)
    assert says in line and line.startswith("hbatch: ")


@pytest.mark.parametrize(
    ("argv", "text", "why"),
    [
        (["-M", "other"], "", "it may go to another cluster"),
        (["--hadar-off"], "", "off=yes"),
        ([], " off=yes", "off=yes"),
    ],
)
def test_the_gpus_that_an_unmanaged_job_declares_and_does_not_get_are_said(place, argv, text, why):
    (line,) = lines(submitted(place, f"#HADAR gpus=4{text}", *argv))
    assert line == (
        f"hbatch: the job is not managed: {why}; it gets no GPU by the gpus= that it declares, so "
        "ask for them with --gres=gpu:N"
    )
    (line,) = lines(submitted(place, f"#HADAR gpus=4{text}", "--gres=gpu:4", *argv))
    assert line == f"hbatch: the job is not managed: {why}"


def test_copies_where_the_policy_makes_none_are_said(place):
    done = submitted(place, "#HADAR gpus=1 fork=1-4 tasks=8 checkpoint=yes", copies=False)
    (line,) = doubts(done)
    assert "fork=1-4 has no effect: this site's policy makes no copies of jobs" in line


@pytest.mark.parametrize("argv", [["--gres=gpu:0"], ["-G0"], ["--gres=gpu:v100:0,shard:2"]])
def test_a_request_for_no_gpu_is_said_to_have_precedence(place, argv):
    (line,) = lines(submitted(place, "#HADAR gpus=4", *argv))
    assert line == (
        "hbatch: the job is not managed: it asks for no GPU; its own request has precedence over "
        "the gpus= that it declares"
    )


@pytest.mark.parametrize(("text", "argv"), [("", ["--gres=none"]), (" off=yes", [])])
def test_of_a_job_without_gpus_or_opted_out_no_count_is_doubted(place, text, argv):
    (line,) = lines(submitted(place, f"#HADAR gpus=1-4{text}", *argv))
    assert "the job is not managed" in line


def test_a_type_that_the_site_has_not_is_named_without_a_request_for_gpus_too(place):
    for types, says in (("v10O", "did you mean v100?"), ("a100,h100", "this site has v100, k80")):
        found = lines(submitted(place, f"#HADAR types={types}"))
        assert any(says in line for line in found), found


def test_a_type_that_the_partition_has_not_is_named_with_those_that_it_has(place):
    text = "#HADAR types=v100,k80,p10 gpus=1"
    (line,) = doubts(submitted(place, text, "-p", "gpu", groups={"gpu": {"v": "v100"}}))
    assert "types=k80,p10 has no effect: partition gpu has v100" in line


@pytest.mark.parametrize("argv", [["--gres=gpu:0"], ["-G0"], ["--gpus=0"]])
def test_a_job_that_asks_for_no_gpu_gets_no_list_and_is_said_to_be_unmanaged(place, argv):
    groups = {"gpu": {"v": "v100", "k": "k80"}}
    done = submitted(place, "#HADAR checkpoint=yes", "-p", "gpu", *argv, mode="act", groups=groups)
    assert lines(done) == ["hbatch: the job is not managed: it asks for no GPU"]
    assert not any("--partition" in word for word in done.seen["argv"])


def test_requeues_where_the_site_allows_none_are_said(place):
    (line,) = doubts(submitted(place, "#HADAR gpus=1 max_requeues=3 checkpoint=yes", chain=[]))
    assert "max_requeues has no effect" in line


def test_backfill_where_the_site_has_none_is_said(place):
    done = submitted(place, "#HADAR gpus=1 backfill=yes checkpoint=yes", backfill=[])
    (line,) = doubts(done)
    assert "backfill=yes" in line and "off" in line


@pytest.mark.parametrize(
    "text",
    [
        "#HADAR gpus=1 epochs=3 dataset_size=5",
        "#HADAR gpus=1 epochs=3 samples=5",
        "#HADAR gpus=1 gpu_mem=12000 model=mine",
        "#HADAR gpus=1 gpu_mem=500M",
        "#HADAR gpus=1 model=resnet101",
        "#HADAR gpus=1 model=transformer",
        "#HADAR gpus=1 backfill=yes checkpoint=yes\n#SBATCH -p spare",
        "##HADAR gpus=1",
        "# hadar moves it where it is quicker",
        "# HADAR: see the wiki; use gpus as you like",
        "# export HADAR_CONFIG=/etc/hadar.toml",
        "#hadarize gpus=1",
        "# header gpus=1",
        "# host model=a",
        "cat > job.sh <<EOF\n#!/bin/sh\n#HADAR gpus=1\nEOF",
        "true # HADAR gpus=1",
        "echo '#HADAR gpus=1'",
    ],
)
def test_what_only_looks_alike_costs_no_word(place, text):
    done = submitted(place, text)
    assert done.returncode == 0 and doubts(done) == []


def test_a_quiet_submit_stays_quiet(place):
    assert lines(submitted(place, "# HADAR gpus=1", "-Q")) == []


@pytest.mark.parametrize(
    ("text", "argv", "says"),
    [
        ("#HADAR gpus=64", [], "has 12 GPUs"),
        ("#HADAR gpus=64", ["--gres=gpu:1"], "has 12 GPUs"),
        ("#HADAR gpus=9-64 types=k80", ["-N4"], "has 4 GPUs of type k80"),
    ],
)
def test_more_gpus_than_there_are_is_an_error_before_the_submission(place, text, argv, says):
    done = submitted(place, text, *argv)
    assert done.returncode == 2
    # An sbatch that is a script is asked who it is.
    assert done.seen is None or done.seen["argv"] == ["--version"]
    assert says in lines(done)[0] and "gpus=" in lines(done)[0]


@pytest.mark.parametrize("sinfo", ["exit 1", "echo '||'", "sleep 60", "echo 'v1|(null)'"])
def test_a_slurm_that_does_not_tell_its_gpus_stops_no_submit(place, sinfo):
    (place.bin / "sinfo").write_text(f"#!/bin/sh\n{sinfo}\n")
    assert submitted(place, "#HADAR gpus=64").returncode == 0


def test_as_many_as_there_are_pass(place):
    assert submitted(place, "#HADAR gpus=12", "-N3").returncode == 0
    # On names of its own Slurm's types tell nothing of ours.
    (place.bin / "sinfo").write_text('#!/bin/sh\necho "v1|gpu:tesla:32"\n')
    assert submitted(place, "#HADAR gpus=12 types=v100", "-N3").returncode == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python train.py", "it would end the job"),
        ("exec python train.py", ""),
        ("exec env A=b python train.py", ""),
        ("env A=b exec python train.py", "it would end the job"),
        ("CODE=85 exec python own.py --resume", ""),
        ("CODE=85 A='b c' B=\"$HOME/x y\" C=$(nproc) D= exec python own.py", ""),
        ("CODE=85; exec python own.py", ""),
        ("cd run && A=b exec python own.py", ""),
        ("CODE=85 python exec own.py", "it would end the job"),
        ("A='b exec python own.py' python own.py", "it would end the job"),
        ("trap 'kill $!; wait' USR1; python train.py & wait", ""),
        ("trap x USR1; python train.py", "with & and wait"),
    ],
)
def test_a_wrapped_command_that_does_not_hear_the_signal_is_doubted(place, command, says):
    place.site(**MODELS)
    words = ["--hadar-gpus=1", "--hadar-checkpoint=signal", "--hadar-signal=B:USR1"]
    found = doubts(place.run(*words, f"--wrap={command}"))
    assert len(found) == bool(says) and says in "".join(found)


def test_of_a_script_that_is_no_shells_nothing_is_said(place):
    """It may handle the signal anywhere."""
    place.site(**MODELS)
    text = "#!/usr/bin/env python3\n#HADAR gpus=1 checkpoint=signal signal=B:USR1\n"
    assert doubts(place.run(place.script(text))) == []


def test_only_the_nodes_of_the_jobs_partition_count(place):
    (place.bin / "sinfo").write_text(
        '#!/bin/sh\ncase "$*" in *-a*--partition*) exit 1;; '
        '*--partition=small*) echo "s1|gpu:v100:2";; *) echo "v1|gpu:v100:64";; esac\n'
    )
    declared = "#HADAR gpus=1-64 checkpoint=yes"
    assert doubts(submitted(place, declared)) == []
    (found,) = doubts(submitted(place, declared, "-p", "small"))
    assert "of gpus=1-64 the job gets at most 2: no node" in found


ME = pwd.getpwuid(os.getuid()).pw_name
OUT, MAYBE = "not managed: outside the site's rollout", "managed: only if the site's rollout"


@pytest.mark.parametrize(
    ("accounts", "users", "percent", "argv", "says"),
    [
        (["ml"], [], 100, ["-A", "phys"], OUT),
        (["ml"], [], 100, ["-A", "ml"], "the job will be managed"),
        (["ml"], [], 100, [], MAYBE),
        (["ml"], [ME], 100, ["-A", "phys"], "the job will be managed"),
        ([], ["no-one"], 100, [], OUT),
        ([], [ME], 100, [], "the job will be managed"),
        ([], [], 10, [], MAYBE),
        ([], [ME], 10, [], MAYBE),
        ([], [], 0, [], OUT),
    ],
)
def test_a_job_outside_the_rollout_is_not_said_to_be_managed(
    place, accounts, users, percent, argv, says
):
    limits = {"accounts": accounts, "users": users, "percent": percent}
    done = submitted(place, "#HADAR gpus=1 types=any", *argv, rollout=limits)
    (line,) = lines(done)
    assert says in line and not any(letter.isdigit() for letter in line)
    assert (says == "the job will be managed") == ("rollout" not in line)
    # What is declared stays: it counts when the rollout grows.
    assert any("hadar1" in word for word in done.seen["argv"])


def test_a_site_that_is_not_found_is_named(place):
    """As with a HADAR_CONFIG that names no file: nothing else says why there is no list."""
    place.env["HADAR_CONFIG"] = str(place.folder / "nowhere.toml")
    (line,) = lines(place.run(place.script("#!/bin/sh\n#HADAR gpus=1 types=any\ntrue\n")))
    # One thing: not that the job is managed, beside no controller that could be known.
    assert line == (
        "hbatch: it is not known whether a controller manages the job: no configuration of the "
        "site is found (hadar check --write makes it known to hbatch)"
    )


def test_a_job_that_is_not_steered_is_not_just_called_managed(place):
    why, remark = lines(submitted(place, "#HADAR types=any", "-N2", "--gpus=4"))
    assert "so the job is not steered; ask for --gpus-per-node" in why
    assert remark.startswith("hbatch: the job will be managed, but not steered: no controller")
    (remark,) = lines(submitted(place, "#HADAR types=any", "-N2", "--gpus-per-node=2"))
    assert "not steered" not in remark


def test_types_that_a_typed_list_excludes_are_named_before_slurm_refuses_them(place):
    groups = {"gpu": {"v": "v100", "w": "v100", "k": "k80"}}
    text = "#HADAR gpus=1 types=k80"
    (line,) = doubts(submitted(place, text, "-p", "w,v", groups=groups))
    assert "types=k80 and partition w,v, which has v100, exclude each other" in line
    for names in ("v,k", "v,other"):
        assert doubts(submitted(place, text, "-p", names, groups=groups)) == []


def test_a_typed_partition_without_the_types_is_named_before_slurm_refuses_it(place):
    groups = {"gpu": {"v": "v100", "k": "k80"}}
    (line,) = doubts(submitted(place, "#HADAR gpus=1 types=k80", "-p", "v", groups=groups))
    assert "types=k80 and partition v, which has v100, exclude each other" in line
    assert doubts(submitted(place, "#HADAR gpus=1 types=k80", "-p", "k", groups=groups)) == []


def test_a_partition_of_a_typed_list_that_the_constraint_excludes_is_named(place):
    groups = {"gpu": {"v": "v100", "k": "k80"}}
    words = ("-p", "v,k", "-C", "v")
    (line,) = doubts(submitted(place, "#HADAR gpus=1 types=any", *words, groups=groups))
    assert "partition k of the list has no node with --constraint=v" in line
    assert "ask for -p v" in line
    for constraint in ("v|k", "ib", "v&ib|k"):
        words = ("-p", "v,k", "-C", constraint)
        assert doubts(submitted(place, "#HADAR gpus=1 types=any", *words, groups=groups)) == []


@pytest.mark.parametrize("asked", ["--gres=gpu:1", "--gpus-per-node=1", "--gpus=1"])
@pytest.mark.parametrize("declared", ["2", "2-4"])
def test_a_request_for_fewer_gpus_than_declared_is_named(place, asked, declared):
    (line,) = doubts(submitted(place, "", asked, f"--hadar-gpus={declared}"))
    assert f"{asked} asks for 1 of the GPUs and gpus={declared} is declared" in line
