"""What the owner of a submit can hardly mean as it stands. hbatch imports it late: most of it is
looked for while sbatch runs."""

from __future__ import annotations

import re
from dataclasses import replace

from slurm_hadar.cli.additions import saves_on
from slurm_hadar.cli.batch_script import script_arguments
from slurm_hadar.cli.count_doubts import of_one_count, of_submit
from slurm_hadar.cli.declaration_warnings import FEW_GPUS, doubts, gpus_of_nodes, repeated
from slurm_hadar.cli.request_warnings import of_the_nodes, of_the_request
from slurm_hadar.domain.declaration import USUAL_SIGNAL
from slurm_hadar.domain.declaration_values import SIGNALS, CountList, signal_of_sbatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_hadar.cli.additions import Settings
    from slurm_hadar.cli.submit import Submit
    from slurm_hadar.domain.declaration import Declaration, SaveSignal


_SHELL = re.compile(rb"#![^\n]*\b(?:ba|da|k|z)?sh\b")
_ENDS = frozenset(("USR1", "USR2", "HUP", "TERM"))
"""Signals that end a shell without a trap."""
_TRAPPED = rb"""\btrap[ \t]+(?:--[ \t]+)?('[^']*'|"[^"]*"|\w+)[ \t]+"""
"""A trap and what it runs, before the names of its signals."""
_BODY = rb"(?ms)^\s*(?:function\s+)?%s\s*(?:\(\s*\))?\s*\{(.*?)^\s*\}"
_EXIT, _MAY_NOT = rb"(?:^|[;\n])\s*exit\b", rb"\b(?:if|case|for|while|until)\b"
"""An exit behind no condition on its line, and what may be a condition around it."""
_WORD = rb"""(?:"[^"]*"|'[^']*'|\$\([^()\n]*\)|\\.|[^\s"'\\;&|()<>])*"""
"""What a shell takes for one word, also none: in quotes, or with a command's output."""
_FIRST = rb"(?m)(?:^|[;{]|&&|\|\||\b(?:then|else|do)\b)\s*"
_EXEC = re.compile(_FIRST + rb"(?:\w+=" + _WORD + rb"[ \t]+)*exec\s")
"""An exec that begins a command, but for what it sets in the environment."""
_TRAP = re.compile(rb"(?:^|[;&|({\n]|\bthen|\bdo|\belse)\s*trap\s(.*)", re.DOTALL)


def doubts_of(submit: Submit, declared: Declaration) -> list[str]:
    """A sentence for each likely mistake."""
    words = _script_words(submit)
    return [
        *repeated(words),
        *doubts(declared, _typed(submit, words), submit.held, submit.site),
        *of_the_nodes(declared, submit.held, submit.site),
        *unheard(declared, submit.held, submit.body),
        *(_of_counts(declared, submit) or of_the_request(declared, submit.held)),
    ]


def _of_counts(declared: Declaration, submit: Submit) -> list[str]:
    """Where more than a usual range of GPUs is declared, or whole nodes are asked for, Slurm is
    asked for the nodes; some 20 ms."""
    gpus, held = declared.gpus, submit.held
    plain = gpus is None or (
        gpus[0] == 1 and gpus[-1] <= FEW_GPUS and not isinstance(gpus, CountList)
    )
    several = gpus is not None and held.get("nodes", "1") not in ("1", "1-1")
    if plain and not several and "exclusive" not in held:
        found = of_one_count(declared, held)
    else:
        partition = held.get("partition") or ""
        found = of_submit(
            declared, held, lambda: gpus_of_nodes(submit.program(), submit.environment, partition)
        )
    return [found] if found else []


def _script_words(submit: Submit) -> list[tuple[str, str]]:
    """The arguments of the ``#HADAR`` lines, with where each stands."""
    if not submit.header.declares:
        return []
    return script_arguments(submit.body.decode(errors="replace"), submit.name)


def _typed(submit: Submit, words: list[tuple[str, str]]) -> dict[str, str]:
    """Key -> value of the declaration, as its owner wrote it."""
    parts = [word.partition("=") for word, _ in words]
    pairs = [(key, value) for key, _, value in parts]
    pairs += [(key, value or "") for key, value in (*submit.in_script, *submit.line.ours)]
    return {key.replace("-", "_"): value for key, value in pairs}


def unheard(declaration: Declaration, held: Settings, body: bytes) -> Iterator[str]:
    """A sentence where nothing in the script, or the command of --wrap, handles the signal on which
    the job saves, or that its own ``--signal`` asks Slurm for.

    Only of what is certain from its text: in a program that is no shell script, or behind mpirun, a
    handler may be anywhere.
    """
    wrapped = not body
    body = body or (held.get("wrap") or "").encode(errors="replace")
    if declaration.habit not in ("signal", "yes") or not body:
        return
    if not wrapped and not _SHELL.match(body):
        return
    code = b"\n".join(line for line in body.splitlines() if not line.lstrip().startswith(b"#"))
    declared = saves_on(declaration, held)
    if declaration.habit == "signal":
        asks = _asks(declaration, declared)
        yield from _of(f"signal={declared or USUAL_SIGNAL}", asks, code)
        if asks.target == "batch" and not declaration.checkpoint_exit_code:
            yield from _of_its_end(asks.name, code)
    elif declared:
        yield from _of_shell(f"signal={declared}", _asks(declaration, declared), code)
    own = signal_of_sbatch(held.get("signal") or "")
    if own and own != declared:
        yield from _of_shell(f"--signal={held['signal']}", _asks(declaration, own), code)


def _asks(declaration: Declaration, signal: str) -> SaveSignal:
    return replace(declaration, signal=signal).asks


def _of(asked: str, asks: SaveSignal, code: bytes) -> Iterator[str]:
    if asks.target != "steps":
        yield from _of_shell(asked, asks, code)
    elif not re.search(rb"\b(?:srun|mpirun|mpiexec)\b", code):
        signal = asked.partition("=")[2]
        yield (
            f"{asked} reaches what srun starts, and the script has no srun; "
            f"write signal=B:{signal} for the batch shell, F:{signal} for all"
        )


def _of_shell(asked: str, asks: SaveSignal, code: bytes) -> Iterator[str]:
    """Of a signal that reaches the batch shell."""
    if asks.target == "steps":
        return
    runs = _EXEC.search(code)
    found = _traps(asks.name, code)
    if found == "none":
        if not runs and asks.name in _ENDS:
            shell = "the batch shell" if asks.target == "batch" else "the batch shell too"
            yield (
                f"{asked} reaches {shell}, and the script has neither a trap for it nor an exec of "
                f"the training: it would end the job; {_cure(asked, asks, code)}"
            )
    elif found == "ignored":
        if not runs and asks.target == "batch":
            yield (
                f"{asked} reaches the batch shell alone, which ignores it (trap ''), so the "
                f"training does not hear it; {_cure(asked, asks, code)}"
            )
    elif asks.target == "batch" and not re.search(rb"\bwait\b", code):
        yield (
            f"the shell runs its trap for {asks.name} only when the command in front ends; "
            "start the training with & and wait for it"
        )


def _of_its_end(name: str, code: bytes) -> Iterator[str]:
    if _only_ends(name, code):
        yield (
            f"its trap for {name} ends the job, and nothing requeues it: write scontrol requeue "
            '"$SLURM_JOB_ID" in the trap, or declare checkpoint_exit_code='
        )


def _only_ends(name: str, code: bytes) -> bool:
    """Whether the trap of a signal surely exits, and nothing in the script brings the job back."""
    if re.search(rb"\b(?:requeue|[sh]batch)\b", code):
        return False
    named = rb"(?:\w+[ \t]+)*(?:SIG)?(?:%s|%d)\b" % (name.encode(), SIGNALS[name])
    found = re.search(_TRAPPED + named, code)
    if found is None:
        return False
    action = found[1].strip(b"\"'")
    body = re.search(_BODY % re.escape(action), code)
    action = body[1] if body else action
    return re.search(_EXIT, action) is not None and not re.search(_MAY_NOT, action)


def _traps(name: str, code: bytes) -> str:
    """``none``, ``ignored`` or ``run``: what the script's traps do on a signal."""
    traps = _TRAP.search(code)
    named = rb"\b(?:SIG)?" + name.encode() + rb"\b|\b%d\b" % SIGNALS[name]
    if traps is None or not re.search(named, traps[1]):
        return "none"
    lines = [one for one in re.split(rb"[;\n]", code) if re.search(rb"\btrap\s", one)]
    of_it = [one for one in lines if re.search(named, one)]
    empty = [one for one in of_it if re.search(rb"""\btrap\s+(?:--\s+)?(?:''|"")\s""", one)]
    return "ignored" if of_it and len(empty) == len(of_it) else "run"


def _cure(asked: str, asks: SaveSignal, code: bytes) -> str:
    if asks.target == "full":
        return f"write trap '' {asks.name} above the training, so that only that hears it"
    if re.search(rb"\bsrun\b", code):
        plain = asked.replace("=B:", "=", 1)
        return f"write {plain}, which reaches what srun starts"
    return "write exec before the training, or a trap that passes it on"
