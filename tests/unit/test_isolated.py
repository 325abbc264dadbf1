"""Our programs start Python with -I, whatever is in a user's environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.isolated import isolated

PYTHON = "/opt/x/venv/bin/python"
BODY = "import sys\nfrom slurm_hadar.cli.hbatch import main\nsys.exit(main())\n"
LONG = f"/{'long/' * 40}bin/python"


@pytest.mark.parametrize("head", [f"#!{PYTHON}3.11\n", f"#!{PYTHON}\n", f"#!{PYTHON} -I\n"])
def test_a_program_of_pips_becomes_isolated_once(head):
    assert isolated(head + BODY, PYTHON) == f"#!{PYTHON} -I\n{BODY}"


@pytest.mark.parametrize("python", [LONG, "/home/a b/venv/bin/python"])
def test_a_path_that_no_kernel_reads_goes_by_the_shell_as_pip_does_it(python):
    plain = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{BODY}"
    once = isolated(plain, python)
    assert f"'''exec' \"{python}\" -I \"$0\" \"$@\"\n' '''\nimport sys" in once
    assert isolated(once, python) == once
    # A Debian package is built in a folder with a long name and lies in another one.
    assert isolated(plain, PYTHON) == f"#!{PYTHON} -I\n{BODY}"


@pytest.mark.skipif(not os.access("/bin/bash", os.X_OK), reason="there is no bash")
def test_behind_such_a_path_the_job_has_all_variables_of_its_user(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    python = f"{folder}/python"
    plain = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    plain += "import json, os\nprint(json.dumps(dict(os.environ)))\n"
    program = tmp_path / "program"
    program.write_text(isolated(plain, python))
    program.chmod(0o755)
    (tmp_path / "start").write_text("echo a user's file was read\n")
    user = {"BASH_FUNC_module%%": "() {  echo loaded\n}", "TEST_ENV_17.14": "123"}
    env = {"PATH": os.defpath, "BASH_ENV": str(tmp_path / "start"), **user}
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    assert env.items() <= json.loads(done.stdout).items()


def test_without_site_a_program_finds_its_package_by_its_own_path():
    once = isolated(f"#!{PYTHON}\n{BODY}", PYTHON, "-IS", "/opt/it's here")
    added = BODY.replace("\nfrom", '\nsys.path.append("/opt/it\'s here")\nfrom')
    assert once == f"#!{PYTHON} -IS\nimport gc\ngc.disable()\n{added}"
    assert isolated(once, PYTHON, "-IS", "/opt/it's here") == once
    again = isolated(once, PYTHON, "-IS", "/else")
    assert again.count("sys.path") == again.count("gc.disable") == 1
    assert isolated(once, PYTHON) == f"#!{PYTHON} -I\n{BODY}"


def test_what_is_not_pips_stays():
    for text in ("#!/bin/sh\nexec x\n", "", BODY):
        assert isolated(text, PYTHON) == text


def hostile(folder):
    """A user's environment that breaks or takes over a Python that looks at it."""
    here = folder / "here"
    here.mkdir()
    for name in ("signal", "enum", "json", "re", "stat", "sitecustomize"):
        (here / f"{name}.py").write_text("print('taken over')\nraise SystemExit(3)\n")
    return here, [
        {"PYTHONPATH": f"{folder}:"},
        {"PYTHONPATH": str(here)},
        {"PYTHONHOME": str(folder)},
        {"PYTHONVERBOSE": "1", "PYTHONINSPECT": "1"},
    ]


def test_a_users_python_environment_is_the_jobs_alone(tmp_path):
    """As installed by install.sh; what sbatch gets is what the user has."""
    hbatch = Path(sys.prefix) / "bin" / "hbatch"
    assert hbatch.read_text().startswith(f"#!{sys.prefix}/bin/python"), "made by another way"
    (tmp_path / "bin").mkdir()
    recorder = tmp_path / "bin" / "sbatch"
    recorder.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit\nenv | grep '^PYTHON' >&2\n")
    recorder.chmod(0o755)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#HADAR gpus=1\ntrue\n")
    here, environments = hostile(tmp_path)
    for more in environments:
        for words in (["--parsable"], ["--hadar-gpus=1"]):
            done = subprocess.run(
                [hbatch, *words, str(tmp_path / "job.sh")],
                env={"PATH": f"{tmp_path}/bin:{os.defpath}", "HOME": str(tmp_path), **more},
                cwd=here,
                capture_output=True,
                text=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, done.stderr
            lines = sorted(done.stderr.splitlines())
            found = [line for line in lines if line.startswith("hbatch: it is not known whether")]
            assert len(found) == 1
            assert sorted(lines) == sorted([*(f"{n}={v}" for n, v in more.items()), *found])
