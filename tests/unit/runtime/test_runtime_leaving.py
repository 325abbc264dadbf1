"""Leaving on TERM: at once, and nothing that a program relies on is left out."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from slurm_hadar.runtime import leaving

PROGRAM = """
import atexit, sys, threading, time
from slurm_hadar.runtime.leaving import LeftOnTerm

class Slow:
    def __del__(self):
        print("destroyed", flush=True)

slow = Slow()
text, raw = open("text", "w"), open("raw", "wb")
text.write("held back")
raw.write(b"held back")
atexit.register(lambda: print("registered first"))
atexit.register(lambda: print("registered last"))
said = threading.Event()
threading.Thread(target=lambda: (said.wait(), time.sleep(0.2), print("thread"))).start()

def steps():
    yield 1
    raise LeftOnTerm

def main():
    try:
        for _ in steps():
            print("step")
    finally:
        print("finally")
        said.set()

match sys.argv[1]:
    case "left":
        main()
    case "caught":
        try:
            main()
        except SystemExit as error:
            print("caught", error.code)
    case "kept":
        try:
            main()
        except SystemExit as error:
            kept = error
    case "broken":
        atexit.register(lambda: 1 / 0)
        main()
"""


def run(folder, how, **environment):
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", how],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (folder / "text").read_text() == (folder / "raw").read_text() == "held back"
    return done.returncode, done.stdout.split("\n"), done.stderr


ALL = ["step", "finally", "thread", "registered last", "registered first"]


def test_everything_but_the_interpreters_end_has_its_turn(tmp_path):
    assert run(tmp_path, "left") == (143, [*ALL, ""], "")


def test_on_wish_the_interpreter_ends_too(tmp_path):
    assert run(tmp_path, "left", HADAR_SLOW_EXIT="1") == (143, [*ALL, "destroyed", ""], "")


@pytest.mark.parametrize("how", ["caught", "kept"])
def test_whoever_catches_it_goes_on_and_ends_as_usual(tmp_path, how):
    code, lines, _ = run(tmp_path, how)
    assert code == 0 and "destroyed" in lines
    assert ("caught 143" in lines) is (how == "caught")


def test_a_handler_that_fails_is_said_and_stops_nothing(tmp_path):
    code, lines, error = run(tmp_path, "broken")
    assert code == 143 and lines == [*ALL, ""]
    assert "ZeroDivisionError" in error


WORKERS = """
import multiprocessing, os, signal, time
from multiprocessing import util
from types import SimpleNamespace
from slurm_hadar.runtime.leaving import LeftOnTerm, own_the_folder_of_workers

context = multiprocessing.get_context("fork")
ready = context.Semaphore(0)

def work():
    # A worker of torch does this when it sends its first tensor to the training.
    util.get_temp_dir()
    ready.release()
    time.sleep(60)

def main():
    own_the_folder_of_workers(SimpleNamespace(num_workers=2))
    workers = [context.Process(target=work, daemon=True) for _ in range(2)]
    for one in workers:
        one.start()
        ready.acquire()
    print(len(os.listdir(os.environ["TMPDIR"])))
    for one in workers:
        # As Slurm, which signals every process of a job.
        os.kill(one.pid, signal.SIGTERM)
        one.join()
    raise LeftOnTerm

main()
"""


def test_loader_workers_that_term_ends_leave_no_folder(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "program.py").write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "1\n", "")
    assert list(scratch.iterdir()) == []


def test_a_loader_without_workers_has_no_folder(monkeypatch):
    monkeypatch.setattr(
        "multiprocessing.util.get_temp_dir", lambda: pytest.fail("there are no workers")
    )
    for loader in ([1, 2], SimpleNamespace(num_workers=0)):
        leaving.own_the_folder_of_workers(loader)
