"""The program itself, in front of a stand-in that records what sbatch would have been given.

The live tests have the real sbatch; here is what can be seen without a cluster.
"""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hung_folder import hung
from missing import needs_root

from slurm_hadar.domain.declaration import decode
from slurm_hadar.exchange.prices import PriceList, mark, write_prices
from slurm_hadar.sandbox.processes import wait_until

RECORDER = """#!/bin/sh
[ "$HADAR_WHO_IS_SBATCH" ] && exit
/bin/cat /proc/$$/cmdline >{out}.argv
/bin/cat /proc/$$/environ >{out}.env
{stdin} >{out}.stdin
/bin/ls /proc/$$/fd >{out}.handles
: >{out}
echo "from sbatch"
exit {code}
"""
"""A shell: hundreds of them start, and a Python takes six times as much CPU time. hbatch asks each
script first whether it is hbatch."""
PLAIN = "#!/bin/sh\necho hi\n"
DECLARED = "#!/bin/sh\n#SBATCH -J x\n#HADAR model=m gpus=1-4 checkpoint=yes\necho hi\n"


class Place:
    """A folder with a recording sbatch on PATH, scripts and perhaps a site."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.out = folder / "out"
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
        self.record(self.bin / "sbatch")

    def record(self, path, stdin=True, code=0):
        path.write_text(
            RECORDER.format(out=self.out, stdin="/bin/cat" if stdin else ":", code=code)
        )
        path.chmod(0o755)

    def recorded(self):
        """What the last one was given; None: it did not run."""
        if not self.out.exists():
            return None

        def said(what):
            return Path(f"{self.out}.{what}").read_bytes()

        # Before its arguments: the shell and its own path.
        _, _, *argv = said("argv").split(b"\0")[:-1]
        pairs = [os.fsdecode(pair).partition("=") for pair in said("env").split(b"\0")[:-1]]
        return {
            "argv": [os.fsdecode(word) for word in argv],
            "env": {name: value for name, _, value in pairs},
            "stdin": said("stdin").decode("latin-1"),
            "handles": said("handles").split(),
        }

    def script(self, text=PLAIN, name="job.sh"):
        (self.folder / name).write_bytes(text.encode("latin-1"))
        return name

    def site(self, **changes):
        exchange = self.folder / "exchange"
        exchange.mkdir(exist_ok=True)
        content = {
            "version": 1,
            "mode": "act",
            "exchange_dir": str(exchange),
            "controller_uid": os.getuid(),
            "types": {
                "v100": {"feature": "v", "memory_gb": 16},
                "k80": {"feature": "k", "memory_gb": 12},
            },
            "groups": {"gpu": {"v": "v100", "k": "k80"}},
            "speeds": {"": {"v100": 0.5, "k80": 1.0}, "m": {"v100": 1.0, "k80": 0.5}},
            "opt_in": ["auto"],
            "default_types": "",
            "sbatch": "sbatch",
            **changes,
        }
        (self.folder / "hadar.hbatch.json").write_text(json.dumps(content))
        self.env["HADAR_CONFIG"] = str(self.folder / "hadar.toml")
        return exchange

    def heartbeat(self, exchange, mode="act", age=0.0, **more):
        beat = {"version": 1, "mode": mode, "time": time.time() - age, "interval_s": 60.0}
        (exchange / "heartbeat.json").write_text(json.dumps(beat | more))

    def run(self, *argv, program=(sys.executable, "-m", "slurm_hadar.cli.hbatch"), **options):
        self.out.unlink(missing_ok=True)
        options.setdefault("stdin", subprocess.DEVNULL)
        if "input" in options:
            del options["stdin"]
        done: Any = subprocess.run(
            [*program, *argv],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            timeout=60,
            **options,
        )
        done.seen = self.recorded()
        assert b"Traceback" not in done.stderr
        return done


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def lines(done):
    return done.stderr.decode().splitlines()


@pytest.mark.parametrize(
    "argv",
    [
        ["-N1", "--gres", "gpu:1", "job.sh", "--hadar-x", "a b", ""],
        ["--wrap=echo hi"],
        ["--parsable", "--", "job.sh"],
        ["--no-such-option=1", "job.sh"],
        ["gone.sh"],
        ["/"],
        ["--help"],
        ["-V"],
        ["--hol", "job.sh"],
    ],
)
def test_an_unmanaged_submit_is_sbatch_to_the_letter(place, argv):
    place.script()
    place.record(place.bin / "sbatch", code=7)
    plain = place.run(*argv, program=("sbatch",))
    ours = place.run(*argv)
    assert ours.seen == plain.seen
    assert ours.seen["argv"] == argv
    assert (ours.returncode, ours.stdout, ours.stderr) == (7, b"from sbatch\n", b"")


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LC_ALL": "C"}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_environment_is_untouched_in_every_locale(place, locale):
    place.script()
    del place.env["LANG"]
    place.env.update(locale)
    # env(1) shows what a recorder in Python could have changed itself.
    (place.bin / "sbatch").write_text("#!/bin/sh\nexec env\n")
    plain = place.run("job.sh", program=("sbatch",))
    ours = place.run("job.sh")
    assert sorted(ours.stdout.split()) == sorted(plain.stdout.split())


@pytest.mark.parametrize("body", ["#!/bin/sh\n# caf\xe9\necho\n", DECLARED, "", "no script", "\0"])
def test_sbatch_gets_the_bytes_of_standard_input(place, body):
    data = body.encode("latin-1")
    assert place.run(input=data).seen["stdin"].encode("latin-1") == data


def test_a_large_script_on_standard_input_arrives_whole(place):
    data = b"#!/bin/sh\n" + b"#\n" * 1_000_000
    assert len(place.run(input=data).seen["stdin"]) == len(data)


def test_a_script_from_a_pipe_is_put_back(place):
    shell = f'"{sys.executable}" -m slurm_hadar.cli.hbatch <(printf "%s" "$0")'
    (place.bin / "sbatch").write_text('#!/bin/sh\necho "$@"\ncat "$2" 2>/dev/null || cat "$5"\n')
    done = place.run("bash", "-c", shell, DECLARED, program=("env",))
    assert DECLARED.strip() in done.stdout.decode()
    assert b"[hadar1 model=m" in done.stdout


def test_a_named_pipe_is_left_to_sbatch(place):
    place.record(place.bin / "sbatch", stdin=False)
    os.mkfifo(place.folder / "pipe")
    done = place.run("./pipe")
    assert done.seen["argv"] == ["./pipe"] and not lines(done)
    (line,) = lines(place.run("--hadar-gpus=1", "./pipe"))
    assert "not managed: ./pipe is not a regular file" in line


def test_a_declared_job_without_a_site_carries_its_declaration(place):
    place.script(DECLARED)
    done = place.run("--parsable", "job.sh", "arg")
    first, *rest = done.seen["argv"]
    assert first == "--gres=gpu:1"
    assert rest[:3] == ["--requeue", "--open-mode=append", "--parsable"]
    assert decode(rest[3]).gpus == (1, 4)
    assert rest[4:] == ["job.sh", "arg"]
    assert done.stdout == b"from sbatch\n"
    assert len(lines(done)) == 1
    assert done.seen["env"]["HADAR_SIGNAL"] == "USR2"
    assert "HADAR_EXCHANGE" not in done.seen["env"]


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_a_closed_or_full_stderr_changes_nothing_else(place, stderr):
    place.script(DECLARED)
    shell = f'exec "{sys.executable}" -m slurm_hadar.cli.hbatch --parsable job.sh {stderr}'
    done = place.run("-c", shell, program=("sh",))
    assert (done.returncode, done.stdout) == (0, b"from sbatch\n")
    assert "[hadar1" in " ".join(done.seen["argv"])


def test_options_beat_lines(place):
    place.script(DECLARED)
    done = place.run("--hadar-gpus", "3", "--hadar-gpu-mem=1G", "--hadar-signal=usr1", "job.sh")
    record = decode(" ".join(done.seen["argv"]))
    assert (record.gpus, record.gpu_mem, record.signal) == ((3, 3), 1024, "USR1")
    assert record.model == "m"
    assert done.seen["env"]["HADAR_SIGNAL"] == "USR1"


def test_what_its_watcher_needs_is_in_the_environment_of_a_job_without_the_runtime(place):
    place.script(DECLARED)
    options = ["--hadar-progress=step={step*64}", "--hadar-checkpoint"]
    done = place.run(*options, "watch:/a/b", "job.sh")
    assert done.seen["env"]["HADAR_PROGRESS"] == "step={step*64}"
    assert done.seen["env"]["HADAR_CHECKPOINT"] == "watch:/a/b"
    assert decode(" ".join(done.seen["argv"])).progress == "step={step*64}"
    done = place.run(*options, "yes", "job.sh")
    assert not {"HADAR_PROGRESS", "HADAR_CHECKPOINT"} & set(done.seen["env"])


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["--hadar-gpus", "none", "job.sh"], PLAIN),
        (["--hadar-speed=1", "job.sh"], PLAIN),
        (["job.sh", ""], DECLARED.replace("gpus=1-4", "gpus=4-1")),
        (["job.sh"], DECLARED.replace("model=m", "model")),
        (["--gres=gpu:k80:1", "--hadar-types=v100", "job.sh"], PLAIN),
        (["job.sh", "--hadar-gpus"], DECLARED.replace("gpus=1-4", "gpus=")),
        (["--hadar-gpus"], PLAIN),
    ],
)
def test_nonsense_is_one_sentence_and_no_submit(place, argv, body):
    place.script(body)
    done = place.run(*argv, input=body.encode())
    assert done.returncode == 2
    assert done.seen is None
    assert len(lines(done)) == 1
    assert done.stdout == b""


def test_words_on_the_terminal_stay_words(place):
    done = place.run("--hadar-model=\x1b[2J\n", "--wrap=x")
    assert b"\x1b" not in done.stderr
    assert len(lines(done)) == 1


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["-N1", ":", "-N1", "job.sh"], DECLARED),
        (["job.sh"], "#!/bin/sh\n#HADAR gpus=1\n#SBATCH hetjob\necho\n"),
        (["-Mother", "job.sh"], DECLARED),
        (["--spank", "x", "job.sh"], DECLARED),
        (["--comment=" + "x" * 1000, "job.sh"], DECLARED),
    ],
)
def test_what_is_not_understood_passes_with_one_line(place, argv, body):
    place.script(body)
    done = place.run(*argv)
    assert done.seen["argv"] == argv
    assert "HADAR_SIGNAL" not in done.seen["env"]
    assert len(lines(done)) == 1
    assert "not managed" in lines(done)[0] and not re.search(r"\d", lines(done)[0])
    # Who declared nothing hears nothing.
    place.script(body.replace("#HADAR", "# none"))
    assert place.run(*argv).stderr == b""


def test_our_words_never_reach_sbatch_even_in_a_heterogeneous_job(place):
    place.script()
    done = place.run("--hadar-gpus=1", "-N1", ":", "--hadar-model=m", "-N2", "job.sh")
    assert done.seen["argv"] == ["-N1", ":", "-N2", "job.sh"]


LISTED = "--partition=v,k"
MANAGED = "hbatch: the job is managed"


@pytest.mark.parametrize(("gres", "says"), [("gpu:1", [MANAGED]), ("help", [])])
def test_where_sbatch_only_lists_its_gres_no_job_is_managed(place, gres, says):
    place.heartbeat(place.site())
    assert lines(place.run("-N1", f"--gres={gres}", place.script(DECLARED))) == says


def test_a_list_needs_a_fresh_heartbeat_of_a_controller_that_acts_and_has_room(place):
    place.script(DECLARED.replace("-J x", "-J x -p gpu"))
    exchange = place.site()
    assert LISTED not in place.run("job.sh").seen["argv"]
    place.heartbeat(exchange)
    done = place.run("-N1", "job.sh", "arg")
    first, *rest = done.seen["argv"]
    assert first == "--gres=gpu:1" and rest[2] == "-N1"
    # Behind the user's own options, so that it wins.
    assert rest[4:] == [LISTED, "job.sh", "arg"]
    assert decode(rest[3]).partitions == ("gpu",)
    assert lines(done) == [MANAGED]
    assert done.seen["env"]["HADAR_EXCHANGE"] == str(exchange)
    assert done.seen["env"]["HADAR_CONTROLLER_UID"] == str(os.getuid())
    for beat in ({"room": False}, {"age": 300}, {"mode": "observe"}):
        place.heartbeat(exchange, **beat)
        done = place.run("job.sh")
        assert LISTED not in done.seen["argv"], beat
        (line,) = lines(done)
        acts = "room" in beat
        later = (
            "hbatch: the job will be managed: no controller is acting now, and until one does it "
            "is an ordinary job"
        )
        assert line.startswith(MANAGED if acts else later)


REFUSING = """#!/bin/sh
[ "$1" = --version ] && exit
echo "$@" >> calls
cat >> scripts
echo "sbatch: a word of the site's" >&2
case "$*" in
*--partition=v*) echo "sbatch: error: Batch job submission failed: $WHY" >&2; exit 1;;
esac
echo 7
exit "${CODE:-0}"
"""
OF_THE_LIST = "Invalid account or account/partition combination specified"
AS_TYPED = (
    f"hbatch: Slurm refuses a list of the partitions of its GPU types ({OF_THE_LIST}), so the job "
    "stays in the partition that it asks for"
)
SITES_WORD = "sbatch: a word of the site's"


def refused(place, why, *argv, body=DECLARED, **options):
    """A submit whose list of partitions sbatch refuses; and the calls of sbatch."""
    (place.bin / "sbatch").write_text(REFUSING)
    place.env["WHY"] = why
    place.heartbeat(place.site())
    place.script(body)
    for name in ("calls", "scripts"):
        (place.folder / name).unlink(missing_ok=True)
    done = place.run("-pgpu", *argv, **options)
    return done, (place.folder / "calls").read_text().splitlines()


def test_what_slurm_refuses_for_our_list_is_submitted_as_typed(place):
    done, (first, second) = refused(place, OF_THE_LIST, "--parsable", "job.sh", "arg")
    assert LISTED in first and "--partition=" not in second and second.startswith("--gres=gpu:1")
    assert "-pgpu" in second and second.endswith("job.sh arg")
    assert decode(second).partitions == ("gpu",) and decode(second).gpus == (1, 4)
    assert (done.returncode, done.stdout) == (0, b"7\n")
    assert lines(done) == [SITES_WORD, AS_TYPED, MANAGED]


def test_what_a_plugin_refuses_is_submitted_as_typed_once(place):
    done, calls = refused(place, "Unspecified error", "job.sh")
    assert len(calls) == 2 and "--partition=" not in calls[1]
    assert (done.returncode, done.stdout) == (0, b"7\n")


def test_the_types_are_kept_without_the_list(place):
    body = DECLARED.replace("model=m", "model=m types=v100")
    done, calls = refused(place, OF_THE_LIST, "job.sh", body=body)
    assert len(calls) == 2 and "--partition=v " in calls[0] and "--constraint=v " in calls[1]
    assert done.returncode == 0


@pytest.mark.parametrize("quiet", [True, False])
def test_a_job_that_asks_for_quiet_and_one_that_waits_are_submitted_as_typed_too(place, quiet):
    option = "-Q" if quiet else "--wait"
    place.env["CODE"] = "3"
    done, calls = refused(place, OF_THE_LIST, option, "job.sh")
    assert len(calls) == 2 and (done.returncode, done.stdout) == (3, b"7\n")
    # Under --wait the end of the job is too late to say it.
    assert lines(done) == ([SITES_WORD] if quiet else [AS_TYPED, SITES_WORD])


@pytest.mark.parametrize(
    "why",
    [
        "Unable to contact slurm controller (connect failure)",
        "Socket timed out on send/recv operation",
        "Invalid job array specification",
        "",
    ],
)
def test_another_refusal_is_shown_once_as_sbatch_says_it(place, why):
    done, calls = refused(place, why, "job.sh")
    assert len(calls) == 1 and (done.returncode, done.stdout) == (1, b"")
    assert lines(done) == [SITES_WORD, f"sbatch: error: Batch job submission failed: {why}"]


def test_a_script_on_standard_input_is_submitted_again_whole(place):
    _, calls = refused(place, OF_THE_LIST, input=DECLARED.encode())
    assert len(calls) == 2 and (place.folder / "scripts").read_text() == 2 * DECLARED


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_a_refused_list_with_a_closed_or_full_stderr(place, stderr):
    shell = f'exec "{sys.executable}" -m slurm_hadar.cli.hbatch "$@" {stderr}'
    refused(place, OF_THE_LIST, "job.sh")
    done = place.run("-c", shell, "sh", "-pgpu", "job.sh", program=("sh",))
    assert (done.returncode, done.stdout) == (0, b"7\n")


def test_sbatchs_words_are_shown_while_it_goes_on(place):
    refused(place, OF_THE_LIST, "job.sh")
    (place.bin / "sbatch").write_text("#!/bin/sh\necho first >&2\nsleep 30\n")
    argv = (sys.executable, "-m", "slurm_hadar.cli.hbatch", "-pgpu", "--wait", "job.sh")
    with subprocess.Popen(argv, env=place.env, cwd=place.folder, stderr=subprocess.PIPE) as runs:
        assert runs.stderr.readline() == b"first\n"
        runs.terminate()
        assert runs.wait(20) == -signal.SIGTERM


def test_where_no_child_can_be_waited_for_nothing_is_listed(place):
    refused(place, OF_THE_LIST, "job.sh")
    (place.folder / "calls").unlink()
    code = "import signal,os,sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); " + (
        "os.execv(sys.executable, [sys.executable, '-m', 'slurm_hadar.cli.hbatch', *sys.argv[1:]])"
    )
    done = place.run("-c", code, "-pgpu", "job.sh", program=(sys.executable,))
    (call,) = (place.folder / "calls").read_text().splitlines()
    assert LISTED not in call and done.returncode == 0


@pytest.mark.parametrize("kept", [None, True, False])
def test_no_list_is_made_where_the_controller_says_that_the_job_stays(place, kept):
    place.script(DECLARED)
    exchange = place.site()
    place.heartbeat(exchange)
    mine = pwd.getpwuid(os.getuid()).pw_name if kept else "another-user"
    marks = None if kept is None else [mark(mine)]
    write_prices(exchange, PriceList({}, 0, 60.0, kept={"gpu": marks}))
    assert (LISTED in place.run("-pgpu", "job.sh").seen["argv"]) is (kept is False)
    write_prices(exchange, PriceList({}, 0, 60.0, kept={"other": None}))
    assert LISTED in place.run("-pgpu", "job.sh").seen["argv"]


def test_a_type_left_out_for_its_speed_is_one_line_beside_ours(place):
    place.script(DECLARED)
    slow = {"speeds": {"": {}, "m": {"v100": 1.0, "k80": 0.1}}, "known": {"m": ["v100", "k80"]}}
    exchange = place.site(**slow)
    place.heartbeat(exchange)
    nodes = {"v": [(4, 32, 64_000)], "k": [(4, 32, 64_000)]}
    write_prices(exchange, PriceList({}, 0, 60.0, nodes))
    done = place.run("-pgpu", "--hadar-types=any", "job.sh")
    assert "--partition=v" in done.seen["argv"]
    assert lines(done) == [
        "hbatch: k80 is left out: by the table it is 10 times slower; types=v100,k80 accepts it",
        MANAGED,
    ]
    assert place.run("-Q", "-pgpu", "--hadar-types=any", "job.sh").stderr == b""
    place.heartbeat(place.site(**slow, quiet=True))
    assert place.run("-pgpu", "--hadar-types=any", "job.sh").stderr == b""


def test_the_list_wins_over_a_typed_partition_and_the_environment(place):
    place.heartbeat(place.site())
    argv = place.run("-p", "gpu", "--", place.script(DECLARED)).seen["argv"]
    assert argv[-3:] == [LISTED, "--", "job.sh"]
    place.env["SBATCH_PARTITION"] = "gpu"
    assert place.run("job.sh").seen["argv"][-2:] == [LISTED, "job.sh"]
    # Of two typed ones the last holds.
    assert LISTED not in place.run("-p", "gpu", "-pother", "job.sh").seen["argv"]


def test_a_stale_site_is_reported_and_the_partition_stays(place):
    place.script(DECLARED)
    place.heartbeat(place.site(stamp=[1, 2]))
    (place.folder / "hadar.toml").write_text("")
    done = place.run("-pgpu", "job.sh")
    assert LISTED not in done.seen["argv"]
    # A path may have digits: the line has none.
    (line,) = lines(done)
    assert line.startswith(MANAGED)
    assert "older" in line or "for details: hbatch --hadar-plan" in line


def test_a_site_of_an_earlier_release_is_used(place):
    place.script(DECLARED)
    place.heartbeat(place.site(lease_s=60, steer=["v", "k"], groups={}, speeds={}))
    done = place.run("-pgpu", "--hadar-types=v100", "job.sh")
    assert "--constraint=v" in done.seen["argv"]
    assert not [word for word in done.seen["argv"] if word.startswith(("--begin", "--part"))]


def test_a_damaged_site_is_reported_and_left_aside(place):
    place.script(DECLARED)
    place.site(mode=3)
    done = place.run("job.sh")
    assert "is ignored" in lines(done)[0] or "for details" in lines(done)[0]
    assert "[hadar1" in " ".join(done.seen["argv"])
    assert place.run("-Q", place.script()).stderr == b""


@pytest.mark.parametrize("how", ["quiet in the site", "-Q", "--quiet"])
def test_quiet_says_nothing(place, how):
    place.script(DECLARED)
    place.site(quiet=how.startswith("quiet"))
    assert place.run(*([how] if how[0] == "-" else []), "job.sh").stderr == b""


@pytest.mark.parametrize(
    ("argv", "managed"),
    [
        (["-pauto", "--gres=gpu:1"], True),
        (["-p", "other,auto", "-G1"], True),
        (["-pauto"], False),
        (["-pother", "-G1"], False),
        (["-G1"], False),
    ],
)
def test_partitions_of_the_site_opt_jobs_in(place, argv, managed):
    place.site(default_types="v100")
    done = place.run(*argv, place.script())
    assert ("[hadar1 types=v100" in " ".join(done.seen["argv"])) is managed
    assert not done.stderr


def test_a_wrong_setting_of_the_site_stops_nobody_who_declared_nothing(place):
    place.site(default_types="h100")
    done = place.run("-pauto", "-G1", place.script())
    assert done.seen["argv"] == ["-pauto", "-G1", "job.sh"]


def test_a_job_that_opts_out_says_so_in_its_comment(place):
    place.site()
    done = place.run("--hadar-off", "-pauto", "-G1", place.script())
    assert done.seen["argv"] == ["-pauto", "-G1", "--comment=[hadar1 off=yes]", "job.sh"]


def test_the_site_names_the_sbatch_and_its_slurm_conf(place):
    other = place.folder / "real"
    place.record(other)
    (place.bin / "sbatch").unlink()
    place.site(sbatch=str(other), slurm_conf="/etc/there.conf")
    seen = place.run(place.script()).seen
    assert seen["env"]["SLURM_CONF"] == "/etc/there.conf"


def test_a_site_of_another_cluster_is_left_aside(place):
    place.script(DECLARED)
    place.heartbeat(place.site(slurm_conf="/etc/there.conf"))
    place.env["SLURM_CONF"] = "/etc/here.conf"
    done = place.run("-pgpu", "job.sh")
    assert "another cluster" in lines(done)[0] or "for details" in lines(done)[0]
    assert done.seen["env"]["SLURM_CONF"] == "/etc/here.conf"
    assert LISTED not in done.seen["argv"]


@pytest.mark.parametrize("called", ["sbatch", "hbatch"])
def test_hbatch_under_the_name_of_sbatch_does_not_call_itself(place, called):
    first = place.folder / "first"
    first.mkdir()
    wrapper = first / "sbatch"
    wrapper.write_text(
        f"#!{sys.executable}\nimport sys\nfrom slurm_hadar.cli.hbatch import main\n"
        "sys.exit(main())\n"
    )
    wrapper.chmod(0o755)
    place.env["PATH"] = f"{first}:{place.env['PATH']}"
    options = {"program": ("sbatch",)} if called == "sbatch" else {}
    done = place.run(place.script(DECLARED), **options)
    assert len([word for word in done.seen["argv"] if word.startswith("--comment")]) == 1
    assert len(lines(done)) == 1


def test_sbatch_gets_its_signals_as_a_shell_would_give_them(place):
    (place.bin / "sbatch").write_text("#!/bin/sh\nexec grep SigIgn /proc/self/status\n")
    plain = place.run(place.script(), program=("sbatch",))
    assert plain.stdout.startswith(b"SigIgn")
    assert place.run("job.sh").stdout == plain.stdout


def test_no_sbatch_is_one_sentence(place):
    (place.bin / "sbatch").unlink()
    place.env["PATH"] = str(place.bin)
    done = place.run(place.script())
    assert done.returncode == 1
    assert "no sbatch" in lines(done)[0] and len(lines(done)) == 1


def test_a_script_is_found_along_path_as_sbatch_finds_it(place):
    (place.bin / "tool.sh").write_text(DECLARED)
    assert "[hadar1" in " ".join(place.run("tool.sh").seen["argv"])
    (place.folder / "tool.sh").write_text(PLAIN)
    assert place.run("tool.sh").seen["argv"] == ["tool.sh"]
    (place.folder / "tool.sh").unlink()
    assert place.run("./tool.sh").seen["argv"] == ["./tool.sh"]


def test_help_and_version_submit_nothing(place):
    for word in ("--hadar-help", "--hadar-version"):
        done = place.run(word, place.script())
        assert done.returncode == 0 and done.seen is None and done.stdout and not done.stderr
    assert b"restart_cost" in place.run("--hadar-help").stdout


HEAVY = {"typer", "pydantic", "tomllib", "numpy", "argparse", "subprocess", "tempfile", "pathlib",
         "typing", "socket", "ast", "tokenize", "copy", "importlib.metadata"}  # fmt: skip


def test_what_is_put_off_is_there_when_it_is_touched(place):
    code = (
        "import sys\nfrom slurm_hadar.cli.hbatch import _load_when_used\n"
        "_load_when_used('copy', 'inspect')\nassert 'ast' not in sys.modules\n"
        "import inspect\nassert 'ast' not in sys.modules\n"
        "print(inspect.isfunction(_load_when_used), 'ast' in sys.modules)\n"
        "from inspect import signature\nprint(signature(_load_when_used))\n"
        "import copy\nassert 'weakref' not in sys.modules\nassert copy.copy([1]) == [1]"
    )
    done = place.run("-c", code, program=(sys.executable,))
    assert done.stdout == b"True True\n(*names: 'str') -> 'None'\n", done.stderr


@pytest.mark.parametrize("declared", [False, True])
def test_imports_are_few(place, declared):
    place.script(DECLARED if declared else PLAIN)
    place.heartbeat(place.site())
    # No script, as Slurm's own.
    (place.bin / "sbatch").unlink()
    (place.bin / "sbatch").symlink_to("/bin/echo")
    program = (sys.executable, "-S", "-X", "importtime", "-c")
    root = Path(__file__).parents[3]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); sys.argv[0] = 'hbatch'\n"
    code += "from slurm_hadar.cli.hbatch import main; main()"
    done = place.run(code, "--gres=gpu:1", "-pgpu", "job.sh", program=program)
    assert done.stdout and (LISTED in done.stdout.decode().split()) is declared
    loaded = {line.rpartition("|")[2].strip() for line in lines(done)}
    assert "slurm_hadar.cli.hbatch" in loaded
    assert loaded & HEAVY == set()
    assert ("dataclasses" in loaded) is declared


@pytest.mark.parametrize("words", [("--hadar-checkpoint", "job.sh"), ("--hadar-gpus", "--wrap=x")])
def test_a_word_without_its_value_is_reported_before_a_script_is_waited_for(place, words):
    place.script()
    reading, writing = os.pipe()
    try:
        done = place.run(*words, stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 2 and done.seen is None
    (line,) = lines(done)
    assert words[0] in line and "is not understood" in line


IN_LINES = """\
#!/bin/sh
#HADAR model=m batch=64 samples=100
#SBATCH --hadar-batch=64:128 --hadar-samples 200 -J x
#SBATCH --hadar-checkpoint=yes
echo hi
"""
HELPFUL = '#!/bin/sh\n[ "$1" = --help ] && echo \'{help}\' && exit 0\nexec {recorder} "$@"\n'


def with_help(place, text):
    """An sbatch that answers --help with ``text``."""
    (place.bin / "sbatch").rename(place.bin / "recorder")
    (place.bin / "sbatch").write_text(HELPFUL.format(help=text, recorder=place.bin / "recorder"))
    (place.bin / "sbatch").chmod(0o755)


def comment_of(done):
    (word,) = [word for word in done.seen["argv"] if word.startswith("--comment=")]
    return decode(word)


def test_words_of_ours_in_sbatch_lines_count_between_hadar_lines_and_typed_ones(place):
    place.site()
    with_help(place, "--hadar-batch=N")
    name = place.script(IN_LINES)
    done = place.run("--hadar-samples=300", name)
    found = comment_of(done)
    assert (found.model, found.batch, found.samples) == ("m", (64, 128), 300)
    assert found.checkpoint and done.seen["argv"][-1] == name
    assert not [line for line in lines(done) if "SPANK" in line]
    # They are enough by themselves.
    alone = place.script("#!/bin/sh\n#SBATCH --hadar-off\n", "off.sh")
    assert comment_of(place.run(alone)).off


@pytest.mark.parametrize("more", [[], ["-Q"]])
def test_an_sbatch_that_does_not_know_them_is_named_and_refuses_by_itself(place, more):
    place.site()
    place.record(place.bin / "sbatch", code=7)
    with_help(place, "Usage: sbatch")
    done = place.run(*more, place.script(IN_LINES))
    (line,) = [line for line in lines(done) if "SPANK" in line]
    assert "knows no --hadar-batch" in line and "job.sh" in line and "#HADAR line" in line
    assert done.returncode == 7


def test_a_mistake_in_them_is_reported_with_its_place(place):
    place.site()
    done = place.run(place.script("#!/bin/sh\n#SBATCH --hadar-batch=many\n"))
    assert done.returncode == 2 and done.seen is None
    assert "--hadar-batch in job.sh" in lines(done)[0]


def test_questions_of_ours_in_sbatch_lines_are_left_to_sbatch(place):
    done = place.run(place.script("#!/bin/sh\n#SBATCH --hadar-plan\n"))
    assert done.seen["argv"] == ["job.sh"] and lines(done) == []


def test_a_configuration_of_another_user_names_no_sbatch(place):
    """As through ``sudo -E``, which keeps HADAR_CONFIG."""
    needs_root("it gives a file to another user")
    theirs = place.folder / "theirs"
    theirs.mkdir()
    place.record(theirs / "sbatch")
    (theirs / "sbatch").write_text("#!/bin/sh\necho theirs ran\n")
    place.site(sbatch=str(theirs / "sbatch"))
    place.script(DECLARED)
    assert b"theirs ran" in place.run("job.sh").stdout
    os.chown(place.folder / "hadar.hbatch.json", 65534, -1)
    done = place.run("job.sh")
    assert done.seen is not None and b"theirs" not in done.stdout
    assert lines(done)[-1].endswith("for details: hbatch --hadar-plan")


def test_hadar_reads_no_configuration_of_another_user(place):
    needs_root("it gives a file to another user")
    config = place.folder / "hadar.toml"
    config.write_text(f'[site]\nstate_dir = "{place.folder}/state"\nrights = "user"\n')
    place.env["HADAR_CONFIG"] = str(config)
    hadar = (sys.executable, "-m", "slurm_hadar.cli.main")
    os.chown(config, 65534, -1)
    for command in ("check", "tick", "plan"):
        done = place.run(command, program=hadar)
        assert done.returncode == 2, lines(done)
        assert lines(done)[-1].startswith(f"hadar: {config} cannot be read: it belongs to nobody")


def merged(place, *argv, **options):
    """What a submit prints on both streams, in order."""
    shell = f'exec "{sys.executable}" -m slurm_hadar.cli.hbatch "$@" 2>&1'
    return place.run("-c", shell, "sh", *argv, program=("sh",), **options).stdout.decode()


def test_our_line_comes_behind_sbatchs_and_has_no_digit(place):
    place.script(DECLARED)
    place.site()
    said = merged(place, "--hadar-types=v100,h100", "job.sh")
    first, doubt, last = said.splitlines()
    assert first == "from sbatch" and "types=h100 has no effect" in doubt
    said = f"{first}\n{last}\n"
    assert said.startswith("from sbatch\nhbatch: the job will be managed: ")
    assert said.count("\n") == 2
    # It has no h100: a name with digits, which the plan tells.
    assert not re.search(r"\d", said) and "for details: hbatch --hadar-plan" in said


@pytest.mark.parametrize("code", [1, 7])
def test_of_a_rejected_submit_we_say_nothing(place, code):
    place.record(place.bin / "sbatch", code=code)
    done = place.run(place.script(DECLARED))
    assert (done.returncode, done.stdout, done.stderr) == (code, b"from sbatch\n", b"")


def test_a_job_without_gpus_is_not_called_managed(place):
    place.site()
    done = place.run("--hadar-model=m", place.script())
    (line,) = lines(done)
    assert "not managed: it asks for no GPU" in line and not re.search(r"\d", line)


PARENT = "#!/bin/sh\necho $PPID\n"


@pytest.mark.parametrize("argv", [["-Q"], ["--quiet"], ["--wait"], ["--test-only"], ["-W"]])
def test_where_nothing_is_to_be_said_sbatch_takes_the_process_over(place, argv):
    (place.bin / "sbatch").write_text(PARENT)
    done = place.run(*argv, place.script(DECLARED))
    assert done.stdout.decode().split() == [str(os.getpid())] and not done.stderr
    assert place.run(place.script(PLAIN)).stdout == done.stdout
    assert place.run(place.script(DECLARED)).stdout != done.stdout


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_a_signal_goes_on_to_sbatch_and_its_end_is_ours(place, name):
    number = signal.Signals[f"SIG{name}"]
    place.script(DECLARED)
    for text, code in ((f"trap 'exit 9' {name}", 9), ("", -number)):
        body = f"#!/bin/sh\n{text}\n: >here\nwhile :; do sleep 0.05; done\n"
        (place.bin / "sbatch").write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{body}')
        running = subprocess.Popen(
            [sys.executable, "-m", "slurm_hadar.cli.hbatch", "job.sh"],
            env=place.env,
            cwd=place.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Whoever runs these tests may ignore it, as nohup does.
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
        )
        assert wait_until(lambda: (place.folder / "here").exists(), 60, 0.02)
        running.send_signal(number)
        said = running.communicate(timeout=60)
        assert (running.returncode, *said) == (code, b"", b"")
        (place.folder / "here").unlink()


WRAPPERS = {
    "exec": '#!/bin/sh\nexec hbatch "$@"\n',
    "child": '#!/bin/sh\ntimeout 60 hbatch "$@"\n',
    "indirect": '#!/bin/sh\nenv submit "$@"\n',
}


def wrapped(place, how):
    """A user's own ``sbatch``, first on PATH, that calls hbatch."""
    first = place.folder / "first"
    first.mkdir()
    hbatch = f'#!/bin/sh\nexec timeout 60 {sys.executable} -m slurm_hadar.cli.hbatch "$@"\n'
    for name, text in (("sbatch", WRAPPERS[how]), ("hbatch", hbatch), ("submit", hbatch)):
        (first / name).write_text(text)
        (first / name).chmod(0o755)
    place.env["PATH"] = f"{first}:{place.env['PATH']}"


@pytest.mark.parametrize("how", WRAPPERS)
@pytest.mark.parametrize("body", [PLAIN, DECLARED])
def test_a_script_named_sbatch_that_calls_hbatch_submits_once(place, how, body):
    wrapped(place, how)
    for program in ("sbatch", "hbatch"):
        done = place.run(place.script(body), program=(program,))
        assert done.returncode == 0 and done.stdout == b"from sbatch\n"
        assert ("[hadar1" in " ".join(done.seen["argv"])) is (body == DECLARED)
        # Neither sbatch nor the job knows of our question.
        assert not [name for name in done.seen["env"] if name.startswith("HADAR_WHO")]


def test_a_script_named_sbatch_that_calls_hbatch_alone_is_one_sentence(place):
    wrapped(place, "exec")
    (place.bin / "sbatch").unlink()
    place.env["PATH"] = f"{place.folder}/first:{place.bin}"
    for name in ("sh", "env", "timeout"):
        (place.bin / name).symlink_to(f"/usr/bin/{name}")
    done = place.run(place.script(), program=("hbatch",))
    (line,) = lines(done)
    assert done.returncode == 1 and "first/sbatch calls hbatch" in line


def test_a_link_named_sbatch_to_hbatch_is_hbatch(place):
    first = place.folder / "first"
    first.mkdir()
    (first / "sbatch").symlink_to(Path(sys.prefix) / "bin" / "hbatch")
    place.env["PATH"] = f"{first}:{place.env['PATH']}"
    done = place.run(place.script(DECLARED), program=("sbatch",))
    (line,) = lines(done)
    assert done.returncode == 0 and line.startswith("hbatch: it is not known whether a controller")
    assert len([word for word in done.seen["argv"] if word.startswith("--comment")]) == 1
    assert place.run("--parsable", place.script(), program=("sbatch",)).seen["argv"][0] == (
        "--parsable"
    )


def test_pipes_under_the_names_of_our_files_keep_nobody_waiting(place):
    place.site()
    os.mkfifo(place.folder / "exchange" / "heartbeat.json")
    first = place.folder / "first"
    first.mkdir()
    os.mkfifo(first / "sbatch", 0o755)
    place.env["PATH"] = f"{first}:{place.env['PATH']}"
    argv = ("-pgpu", place.script(DECLARED))
    assert "[hadar1" in " ".join(place.run(*argv).seen["argv"])
    (place.folder / "hadar.hbatch.json").unlink()
    os.mkfifo(place.folder / "hadar.hbatch.json")
    assert "[hadar1" in " ".join(place.run(*argv).seen["argv"])


@pytest.mark.parametrize(
    ("argv", "variable", "managed"),
    [
        ([], "", True),
        (["-pother"], "", False),
        ([], "other", False),
        (["-pauto"], "other", True),
        ([], "auto", True),
    ],
)
def test_the_default_partition_of_slurm_opts_jobs_in(place, argv, variable, managed):
    place.site(default_types="v100", default_partition="auto")
    if variable:
        place.env["SBATCH_PARTITION"] = variable
    done = place.run(*argv, "-G1", place.script())
    assert ("[hadar1 types=v100" in " ".join(done.seen["argv"])) is managed


@pytest.mark.parametrize(("name", "managed"), [("here", True), ("there", False), ("all", False)])
def test_the_name_of_ones_own_cluster_does_not_unmanage_a_job(place, name, managed):
    place.site(cluster="here")
    done = place.run(f"-M{name}", place.script(DECLARED))
    assert ("[hadar1" in " ".join(done.seen["argv"])) is managed
    place.env["SLURM_CLUSTERS"] = name
    done = place.run(place.script(DECLARED))
    assert ("[hadar1" in " ".join(done.seen["argv"])) is managed


def test_lines_of_pbs_and_lsf_count_as_sbatch_translates_them(place):
    place.heartbeat(place.site())
    head = "#!/bin/sh\n#HADAR model=m types=v100,k80 checkpoint=yes\n"
    argv = place.run(place.script(head + "#PBS -q gpu -l nodes=1:gpus=2\necho\n")).seen["argv"]
    assert LISTED in argv and not [word for word in argv if word.startswith("--g")]
    # Behind the first command too, as sbatch looks there.
    argv = place.run(place.script(head + "#SBATCH -G1\necho\n#PBS -q auto\n")).seen["argv"]
    assert decode(" ".join(argv)).partitions == ("auto",)
    argv = place.run(place.script(head + '#BSUB -q gpu -m "a b"\n#SBATCH -G1\n')).seen["argv"]
    assert LISTED not in argv and decode(" ".join(argv)).partitions == ("gpu",)
    ignored = place.run("--ignore-pbs", place.script(head + "#PBS -q gpu\n#SBATCH -G1\n"))
    assert decode(" ".join(ignored.seen["argv"])).partitions == ()


@pytest.mark.parametrize("link", [False, True])
def test_hadar_check_follows_an_sbatch_that_is_hbatch(place, link):
    code = (
        "from slurm_hadar.cli.site import submits_with; from slurm_hadar.config import Config\n"
        "said = []; print(submits_with(Config(), said)); print(*(f.what for f in said))"
    )
    wrapped(place, "exec")
    if link:
        (place.folder / "first" / "sbatch").unlink()
        (place.folder / "first" / "sbatch").symlink_to(Path(sys.prefix) / "bin" / "hbatch")
    done = place.run("-c", code, program=(sys.executable,))
    own, said = done.stdout.decode().splitlines()
    assert own == str(place.bin / "sbatch")
    assert said == f"{place.folder}/first/sbatch calls hbatch, which submits with {own}"
    (place.bin / "sbatch").unlink()
    place.env["PATH"] = f"{place.folder}/first:{place.bin}"
    for name in ("sh", "env", "timeout"):
        (place.bin / name).symlink_to(f"/usr/bin/{name}")
    assert b"sbatch on PATH" in place.run("-c", code, program=(sys.executable,)).stdout


def test_a_submit_beside_a_hung_exchange_folder_goes_on_without_it(place):
    place.site(exchange_dir=str(place.folder / "hung"))
    place.script(DECLARED)
    with hung(place.folder / "hung"):
        done = place.run("-p", "gpu", "job.sh")
    assert done.seen is not None and any("no answer" in line for line in lines(done))
