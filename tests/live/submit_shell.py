"""sbatch and hbatch side by side in one folder: what they answer and what Slurm then shows."""

import base64
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from missing import missing

from slurm_hadar.plugins import changes
from slurm_hadar.plugins.install import InstallRequest, planned, removal

HERE = Path(__file__).parent
HBATCH = str(Path(sys.prefix) / "bin" / "hbatch")


class Shell:
    """Submits of both kinds in one folder."""

    def __init__(self, box, folder):
        self.box = box
        self.folder = folder
        kept = ("HOME", "USER", "LANG", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | box.env
        self.words, self.why, self.typed = [], "", []
        """Of the last submit: the words for sbatch, why hbatch left it alone, what was typed."""
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
        *answer, self.words, self.why = json.loads(self.runner.stdout.readline())
        self.typed = case["argv"]
        return tuple(answer)

    def is_managed(self):
        """Whether hbatch declared the last submit."""
        return "[hadar1" in " ".join(self.words) and "[hadar1" not in " ".join(self.typed)

    def added(self):
        """Options that hbatch added to the last submit, but for the Comment."""
        ours = [word for word in self.words if word not in self.typed]
        return [word.partition("=")[0] for word in ours if not word.startswith("--comment=")]

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


def managed_lines(stderr):
    """sbatch's words, without the job's number and the moment."""
    lines = [line for line in stderr.splitlines() if not line.startswith("hbatch: ")]
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "TIME", "\n".join(lines))
    return re.sub(r"\bJob \d+", "Job N", text)


def verdict(answer, managed):
    """Exit code, stdout, stderr; of what -v tells only what does not list the options."""
    code, out, err = answer
    text = managed_lines(err)
    if managed:
        text = "\n".join(
            line for line in text.splitlines() if not re.match(r"sbatch: (\S+ +: |-)", line)
        )
    return code, out, text


def nameless(text, job_id):
    """Without the numbers of the job and, in a heterogeneous one, of those that follow it."""
    for following in range(4):
        text = re.sub(rf"(?<!\d){int(job_id) + following}(?!\d)", f"N+{following}", text)
    return text


def moment(text):
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def waits(case):
    """Whether a submit of it would wait for the end of the job, or say no number."""
    script = (case.script or b"").decode(errors="replace")
    text = " ".join([*case.argv, *case.env, script])
    return re.search(r"--?(w|W|wa|wait|Q|qu\w*)\b|SBATCH_WAIT|-\w*[WQ]", text) is not None


def load_plugins(box, site, *plugins):
    """Have Slurm load these plugins and no others. ``site``: the configuration."""
    if plugins:
        prefix = box.programs.prefix
        wish = InstallRequest(plugins, plugin_dir=prefix / "lib" / "slurm" if prefix else None)
        plan = planned(box.conf, site, wish)
        if any("lua.so" in line for line in plan.by_hand):
            missing("this Slurm has no Lua plugins (Debian: slurm-wlm-basic-plugins)")
        changes.apply(plan.changes)
    else:
        changes.apply(removal(box.conf).changes)
    box.run("scontrol", "reconfigure")
