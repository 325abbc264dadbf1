"""``hadar completion SHELL``: completion of hadar's and hbatch's options and arguments in bash, zsh
and fish. That of hbatch, sbatch's options and ours, is made from the tables that hbatch reads by.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import chain
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from slurm_hadar.cli.manual_hbatch import CHOICES, MEANING, QUESTIONS
from slurm_hadar.cli.sbatch_options import FLAG, LONG, OPTIONAL, SHORT, VALUE

_KEYS = {key: f"--hadar-{key.replace('_', '-')}" for key in MEANING if key != "off"}
_ASKING = {text.split()[0]: meaning for text, meaning in QUESTIONS.items()}
_JSON = "--json"
_FILES = ("error", "input", "output", "nodefile", "export-file")
_FOLDERS = ("chdir", "container")


class Shell(StrEnum):
    """The shells that there is completion for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class Program(StrEnum):
    """The programs that are completed."""

    HADAR = "hadar"
    HBATCH = "hbatch"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.")],
    program: Annotated[
        Program | None, typer.Argument(help="Only for this program. Default: both.")
    ] = None,
) -> None:
    """Print the shell code that completes hadar and hbatch.

    For bash and zsh: source <(hadar completion bash); for fish: hadar completion fish | source.
    """
    for one in Program if program is None else (program,):
        typer.echo(script(one, shell))


def script(program: Program, shell: Shell) -> str:
    """The shell's code for one program."""
    if program is Program.HBATCH:
        return _HBATCH[shell]()
    return get_completion_script(
        prog_name="hadar", complete_var="_HADAR_COMPLETE", shell=shell.value
    )


def _values(key: str) -> str:
    """The values that a key of ours takes, where they can be listed."""
    if key in CHOICES:
        return "yes no"
    words = {
        "types": "any",
        "checkpoint": "yes no signal restart",
        "signal": "USR1 USR2 HUP INT TERM CONT URG WINCH",
    }
    return words.get(key, "")


def _hbatch_in_bash() -> str:
    """For _hbatch_in_bash 4 and later."""
    with_value = [f"--{name}" for name, takes in LONG.items() if takes == VALUE]
    short_value = [f"-{letter}" for letter, name in SHORT.items() if LONG[name] == VALUE]
    known = [f"--{name}" + "=" * (takes == VALUE) for name, takes in LONG.items()]
    known += [f"{option}=" for option in _KEYS.values()] + [*_ASKING, _JSON]
    cases = "\n".join(
        f'        {_KEYS[key]}) COMPREPLY=($(compgen -W "{_values(key)}" -- "$word")); return ;;'
        for key in _KEYS
        if _values(key)
    )
    return f"""\
_hbatch() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} at
    COMPREPLY=()
    # Behind the script stand its own arguments. A = is a word of its own here.
    for ((at = 1; at < COMP_CWORD; at++)); do
        case ${{COMP_WORDS[at]}} in
            --*) if [[ ${{COMP_WORDS[at+1]}} == = ]]; then ((at += 2))
                elif [[ " {_joined(with_value, _KEYS.values())} " == *" ${{COMP_WORDS[at]}} "* ]]
                then ((at++)); fi ;;
            {"|".join(short_value)}) ((at++)) ;;
            -*) ;;
            *) return ;;
        esac
    done
    if [[ $word == = ]]; then word=
    elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}
    elif [[ $word == --* ]]; then
        COMPREPLY=($(compgen -W "{_joined(known)}" -- "$word"))
        if [[ ${{#COMPREPLY[@]}} == 1 && $COMPREPLY == *= ]]; then compopt -o nospace; fi
        return
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "{_joined(f"-{letter}" for letter in SHORT)}" -- "$word"))
        return
    fi
    case $before in
{cases}
    esac
}}
complete -o bashdefault -o default -F _hbatch hbatch"""


def _hbatch_in_zsh() -> str:
    """For _hbatch_in_zsh with its completion system (compinit)."""
    ends = {FLAG: "", VALUE: "=", OPTIONAL: "=-"}
    specs = [f"--{name}{ends[takes]}{_zsh_value(name, takes)}" for name, takes in LONG.items()]
    specs += [
        f"-{letter}{'+' if LONG[name] != FLAG else ''}[--{name}]{_zsh_value(name, LONG[name])}"
        for letter, name in SHORT.items()
    ]
    for key, option in _KEYS.items():
        takes, meaning = MEANING[key]
        action = f"({_values(key)})" if _values(key) else " "
        specs.append(f"{option}=[{_zsh(meaning)}]:{_zsh(takes)}:{action}")
    specs += [f"{option}[{_zsh(meaning)}]" for option, meaning in _ASKING.items()]
    specs.append(f"{_JSON}[the plan as JSON, behind --hadar-plan]")
    lines = "\n".join(f"        {_quoted(spec)}" for spec in specs)
    return f"""\
#compdef hbatch
_hbatch() {{
    local -a specs=(
{lines}
    )
    _arguments -s -S -A '-*' $specs '1:batch script:_files' '*:argument:_files'
}}
if [[ $funcstack[1] == _hbatch ]]; then _hbatch "$@"; else compdef _hbatch hbatch; fi"""


def _hbatch_in_fish() -> str:
    """For _hbatch_in_fish 3 and later."""
    letters = {name: letter for letter, name in SHORT.items()}
    lines = []
    for name, takes in LONG.items():
        short = f" -s {letters[name]}" if name in letters else ""
        value = " -r" if takes == VALUE and name in _FILES + _FOLDERS else " -x" * (takes == VALUE)
        lines.append(f"complete -c hbatch -l {name}{short}{value}")
    for key, option in _KEYS.items():
        words = f" -a {_quoted(_values(key))}" if _values(key) else ""
        lines.append(f"complete -c hbatch -l {option[2:]} -x{words} -d {_quoted(MEANING[key][1])}")
    for option, meaning in _ASKING.items():
        lines.append(f"complete -c hbatch -l {option[2:]} -d {_quoted(meaning)}")
    lines.append(f"complete -c hbatch -l {_JSON[2:]} -d 'the plan as JSON, behind --hadar-plan'")
    return "\n".join(lines)


_HBATCH: dict[Shell, Callable[[], str]] = {
    Shell.BASH: _hbatch_in_bash,
    Shell.ZSH: _hbatch_in_zsh,
    Shell.FISH: _hbatch_in_fish,
}


def _zsh_value(name: str, takes: int) -> str:
    if takes == FLAG:
        return ""
    action = "_files -/" if name in _FOLDERS else "_files" if name in _FILES else " "
    return (":" if takes == VALUE else "::") + f"value:{action}"


def _zsh(text: str) -> str:
    """Text in an _arguments spec, where brackets and colons mean something."""
    return "".join("\\" + c if c in "[]:\\" else c for c in text)


def _joined(*groups: Iterable[str]) -> str:
    return " ".join(chain.from_iterable(groups))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
