"""Runs submits one after another: as sbatch, and as hbatch up to and through its ``exec``.

A process of its own that has hbatch's modules loaded and forks for each submit, so that a thousand
of them do not pay for Python's start; what ``hbatch`` does from ``main()`` on is all real.
"""

import base64
import importlib
import json
import os
import signal
import sys

from slurm_hadar.cli import additions, batch_script, hbatch, real_sbatch, submit, wrapper_site  # noqa: F401

LIMIT_S = 60


def note(handle: int) -> None:
    """Have hbatch write down which words it gives to sbatch, and why it leaves a job alone."""
    decide, sbatch_arguments = hbatch._decide, submit.Submit.sbatch_arguments
    seen = {"words": [], "why": ""}

    def deciding(*arguments):
        outcome = decide(*arguments)
        seen["why"] = outcome.why
        return outcome

    def giving(self, added):
        seen["words"] = sbatch_arguments(self, added)
        # Where Slurm would refuse a list of partitions there is a second request, a shorter one.
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(seen).encode(), 0)
        return seen["words"]

    hbatch._decide, submit.Submit.sbatch_arguments = deciding, giving  # type: ignore[method-assign]


def run(
    program: str, argv: list[str], env: dict[str, str], stdin: bytes
) -> tuple[int, str, str, list[str], str]:
    """Exit code, stdout and stderr; of hbatch the words for sbatch, and why it is not managed."""
    if "--hadar-plan" in argv:
        importlib.import_module("slurm_hadar.cli.common")
        importlib.import_module("slurm_hadar.cli.plan_of_job")
    files = [os.memfd_create(name) for name in ("in", "out", "err", "noted")]
    os.write(files[0], stdin)
    os.lseek(files[0], 0, os.SEEK_SET)
    child = os.fork()
    if child == 0:
        try:
            for number, handle in enumerate(files[:3]):
                os.dup2(handle, number)
            signal.alarm(LIMIT_S)
            os.environ.clear()
            os.environ.update(env)
            if program == "hbatch":
                note(files[3])
                sys.argv = ["/usr/bin/hbatch", *argv]
                code = hbatch.main()
                sys.stdout.flush()
                os._exit(code)
            os.execvpe(program, [program, *argv], env)
        finally:
            os._exit(99)
    status = os.waitpid(child, 0)[1]
    said = []
    for handle in files[1:]:
        os.lseek(handle, 0, os.SEEK_SET)
        said.append(os.read(handle, 1 << 20).decode(errors="replace"))
    for handle in files:
        os.close(handle)
    noted = json.loads(said[2] or '{"words": [], "why": ""}')
    code = os.waitstatus_to_exitcode(status)
    return code, said[0], said[1], noted["words"], noted["why"]


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        stdin = base64.b64decode(case["stdin"])
        answer = run(case["program"], case["argv"], case["env"], stdin)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
