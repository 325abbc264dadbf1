"""Completion, in the shells themselves."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from missing import missing

from slurm_hadar.cli.completion import Program, Shell, script
from slurm_hadar.cli.sbatch_options import LONG
from slurm_hadar.domain.declaration import KEYS

BIN = Path(sys.executable).parent
CASES = {
    "hbatch --hadar-restart": ["--hadar-restart-cost"],
    "hbatch --hadar-checkpoint=": ["yes", "no", "signal", "restart"],
    "hbatch --hadar-checkpoint y": ["yes"],
    "hbatch --mail-": ["--mail-type", "--mail-user"],
    "hbatch --nodes=2 --hadar-pl": ["--hadar-plan"],
    "hbatch -N 2 --ntasks 4 --hadar-pl": ["--hadar-plan"],
    "hbatch -N 2 train": ["train.sh"],
    "hbatch train.sh --hadar-pl": [],
    "hadar expl": ["explain"],
    "hadar sandbox s": ["status"],
    "hadar tick --wa": ["--wait"],
}
"""What is typed -> what the shell offers, whatever it puts behind."""


@pytest.fixture
def env(tmp_path):
    (tmp_path / "train.sh").write_text("")
    return {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
        # Set to nothing it would hide zsh's own functions.
        **({"FPATH": os.environ["FPATH"]} if "FPATH" in os.environ else {}),
    }


def need(shell):
    if shutil.which(shell) is None:
        missing(f"{shell} is not installed")


def run(argv, env):
    done = subprocess.run(
        argv, env=env, cwd=env["HOME"], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "", done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", Shell)
def test_hadar_prints_the_code_and_the_shell_takes_it(shell, env):
    need(shell.value)
    code = run([str(BIN / "hadar"), "completion", shell.value], env)
    assert all(f"{program.value}" in code for program in Program)
    check = {"bash": ["bash", "-n"], "zsh": ["zsh", "-fn"], "fish": ["fish", "-n"]}[shell.value]
    path = Path(env["HOME"]) / "code"
    path.write_text(code)
    assert run([*check, str(path)], env) == ""


@pytest.mark.parametrize("shell", Shell)
def test_all_options_of_both_are_offered(shell):
    code = script(Program.HBATCH, shell)
    for name in LONG:
        assert re.search(rf"(--|-l ){name}\b", code), name
    for key in KEYS:
        assert re.search(rf"(--|-l )hadar-{key.replace('_', '-')}\b", code), key


_BASH = """
source "$1"; line=$2
complete -p hbatch hadar >/dev/null || exit 1
read -ra COMP_WORDS <<< "${line//=/ = }"
[[ $line == *[\\ =] ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line}
compopt() { :; }
found=$(complete -p ${COMP_WORDS[0]}); found=${found##*-F }; found=${found%% *}
$found ${COMP_WORDS[0]} "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("typed", CASES)
def test_bashs_functions_offer_what_fits(typed, env, tmp_path):
    need("bash")
    code = tmp_path / "code"
    code.write_text("\n".join(script(program, Shell.BASH) for program in Program))
    said = run(["bash", "--norc", "-c", _BASH, "bash", str(code), typed], env).split()
    wanted = [] if "train" in typed.split()[-1] else CASES[typed]
    # Files are left to bash itself, where the function offers nothing.
    assert [word.rstrip("=") for word in said] == wanted


@pytest.mark.parametrize("typed", CASES)
def test_fish_offers_what_fits(typed, env, tmp_path):
    need("fish")
    code = tmp_path / "code"
    code.write_text("\n".join(script(program, Shell.FISH) for program in Program))
    said = run(["fish", "--no-config", "-c", f"source {code}; complete -C '{typed}'"], env)
    found = [line.split("\t")[0].rpartition("=")[2] or line for line in said.splitlines()]
    # fish offers options behind arguments too, whatever the command.
    wanted = CASES[typed] or ["--hadar-plan"]
    assert sorted(found) == sorted(wanted)


class Terminal:
    """A shell in a terminal of its own, in which keys are pressed."""

    def __init__(self, argv, env, folder):
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(argv[0], argv, env)

    def press(self, keys, until, timeout_s=60.0, again_s=5.0):
        """What the terminal shows until a pattern comes. The line is begun anew now and then: a
        shell that is not ready for its keys drops some."""
        os.write(self.handle, keys.encode())
        seen, end = "", time.monotonic() + timeout_s
        again = time.monotonic() + again_s
        while not re.search(until, seen):
            assert time.monotonic() < end, seen
            if time.monotonic() > again:
                again += again_s
                os.write(self.handle, b"\x15" + keys.removeprefix("\x15").encode())
            if select.select([self.handle], [], [], 0.2)[0]:
                seen += os.read(self.handle, 65536).decode(errors="replace")
        return seen

    def close(self):
        os.write(self.handle, b"\x15exit\r")
        os.close(self.handle)
        os.waitpid(self.pid, 0)


START = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "source code; PS1=ready; bind 'set enable-bracketed-paste off'\r",
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -Uz compinit; compinit -u -D; source ./code; PS1=ready\r",
    ),
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_tab_in_a_terminal_completes(shell, env, tmp_path):
    need(shell)
    code = "\n".join(script(program, Shell(shell)) for program in Program)
    (tmp_path / "code").write_text(code)
    argv, first = START[shell]
    terminal = Terminal(argv, env, tmp_path)
    try:
        terminal.press(first, r"ready\S*$")
        terminal.press("hbatch --hadar-res\t", "--hadar-restart-cost=")
        terminal.press("\x15hbatch --mem=1 --hadar-checkpoint=y\t", "=yes ")
        terminal.press("\x15hbatch tra\t", "train.sh")
        terminal.press("\x15hadar expl\t", "explain ")
    finally:
        terminal.close()
