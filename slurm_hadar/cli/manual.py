"""``hadar manual DIR``: the man pages, from the texts of ``--help``, by a few macros of man(7)."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from slurm_hadar import __version__, paths
from slurm_hadar.cli import manual_hbatch as hbatch
from slurm_hadar.cli import manual_keys
from slurm_hadar.cli.sbatch_options import LONG
from slurm_hadar.domain.errors import HadarError

_ENVIRONMENT = {
    paths.ENV: "the configuration file, in place of the standard locations",
    "SLURM_CONF": "the slurm.conf of the cluster, as for Slurm's commands",
}
_SAME_KIND = {"STR": "TEXT", "INT": "INTEGER"}
_CODES = {"0": "done", "1": "it failed; one sentence on stderr says why", "2": "wrong usage"}
_FILES = {
    "/etc/slurm-hadar/hadar.toml": "the site's configuration; see hadar.toml(5)",
    "~/.config/slurm-hadar/hadar.toml": "the user's own configuration",
}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(manual)


def manual(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="Gets the folders man1 and man5, as MANPATH wants them.")
    ],
) -> None:
    """Write the man pages of hbatch, hadar and hadar.toml."""
    try:
        for name, text in pages(context.find_root().command).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            typer.echo(path)
    except OSError as error:
        raise HadarError(f"{error.filename} cannot be written: {error.strerror}") from None


def pages(command: Any) -> dict[str, str]:
    """File -> man page; ``command`` is that of ``hadar`` with all its subcommands."""
    return {
        "man1/hbatch.1": _hbatch(),
        "man1/hadar.1": _hadar(command),
        "man5/hadar.toml.5": _configuration(),
    }


def _hbatch() -> str:
    keys = [term(f"{key}={takes}", text) for key, (takes, text) in hbatch.MEANING.items()]
    asking = [term(option, text) for option, text in hbatch.QUESTIONS.items()]
    return page(
        [
            title("hbatch", 1, __version__),
            heading("NAME"),
            f"hbatch \\- {plain(hbatch.PURPOSE)}",
            heading("SYNOPSIS"),
            plain(hbatch.USAGE),
            heading("DESCRIPTION"),
            paragraphs(hbatch.DESCRIPTION),
            example(hbatch.EXAMPLES),
            heading("KEYS"),
            paragraphs("In #HADAR lines, or as --hadar-KEY VALUE or --hadar-KEY=VALUE."),
            *keys,
            heading("OPTIONS"),
            *asking,
            paragraphs("And all options of sbatch: " + ", ".join(f"--{n}" for n in LONG) + "."),
            heading("EXIT STATUS"),
            paragraphs(
                "That of sbatch. Without a submission: 1 where there is no sbatch, "
                "2 where a declaration is invalid."
            ),
            *_closing("sbatch(1), hadar(1), hadar.toml(5)"),
        ]
    )


def _hadar(command: Any) -> str:
    parts = [
        title("hadar", 1, __version__),
        heading("NAME"),
        "hadar \\- run, watch and explain slurm\\-hadar",
        heading("SYNOPSIS"),
        "hadar COMMAND [OPTIONS] [ARGUMENTS]",
        heading("DESCRIPTION"),
        paragraphs(command.help),
        heading("COMMANDS"),
    ]
    for name, one in sorted(command.commands.items()):
        parts += _command(name, one)
    codes = [term(code, meaning) for code, meaning in _CODES.items()]
    return page(
        [*parts, heading("EXIT STATUS"), *codes, *_closing("hbatch(1), hadar.toml(5), sbatch(1)")]
    )


def _command(name: str, command: Any) -> list[str]:
    if hasattr(command, "commands"):
        return [
            part
            for below, one in sorted(command.commands.items())
            for part in _command(f"{name} {below}", one)
        ]
    context = typer.Context(command, info_name=name)
    given = [p for p in command.params if p.param_type_name == "argument"]
    named = {p.name: p.metavar or str(p.name).upper() for p in given}
    usage = [named[p.name] if p.required else f"[{named[p.name]}]" for p in given]
    parts = [subheading(" ".join(["hadar", name, *usage])), paragraphs(command.help or "")]
    for one in command.params:
        words, said = one.get_help_record(context)
        what = named[one.name] if one in given else _option(one, words)
        parts.append(term(what, said.replace("  [required]", "")))
    return parts


def _option(option: Any, shown: str) -> str:
    """The option's names and what it takes. Releases of typer write the latter in many ways."""
    names = sorted([*option.opts, *option.secondary_opts], key=lambda name: name.startswith("--"))
    takes = shown.rpartition(" ")[2].strip("<>[]")
    if takes.startswith("-"):
        return ", ".join(names)
    takes = re.sub(r".*list\[", "", takes).upper()
    return f"{', '.join(names)} {_SAME_KIND.get(takes, takes)}"


def _configuration() -> str:
    about = manual_keys.sections()
    parts = [
        title("hadar.toml", 5, __version__),
        heading("NAME"),
        "hadar.toml \\- the configuration of slurm\\-hadar",
        heading("DESCRIPTION"),
        paragraphs(
            "TOML. Every key is optional. Units are part of the names: _s seconds, _gb GB, "
            "_mb MB. After a change: hadar check --write, so that hbatch sees it."
        ),
        heading("KEYS"),
    ]
    section = ""
    for key in manual_keys.all_keys():
        if key.section != section:
            section = key.section
            parts += [subheading(f"[{section}]"), paragraphs(about[section])]
        words = f"{key.name} = {key.default}" if key.default != "none" else key.name
        parts.append(term(words, f"{key.meaning} Takes: {key.takes}."))
    return page([*parts, *_closing("hadar(1), hbatch(1)")])


def _closing(see: str) -> list[str]:
    return [
        heading("ENVIRONMENT"),
        *(term(name, meaning) for name, meaning in _ENVIRONMENT.items()),
        heading("FILES"),
        *(term(name, meaning) for name, meaning in _FILES.items()),
        heading("SEE ALSO"),
        plain(see),
    ]


def plain(words: str) -> str:
    """Text that means itself: no request at a line's start, hyphens that can be copied."""
    safe = words.replace("\\", "\\e").replace("-", "\\-")
    # A word as long as a line needs places where it may be broken.
    safe = re.sub(r"\S{50,}", lambda word: re.sub(r"([|)/,])", r"\1\\:", word[0]), safe)
    return re.sub(r"^(?=[.'])", r"\\&", safe, flags=re.M)


def title(name: str, section: int, version: str) -> str:
    """The head of a page. Nothing is hyphenated, so that pages can be searched for."""
    head = f'.TH {plain(name.upper())} {section} "" "slurm\\-hadar {plain(version)}" slurm\\-hadar'
    return f"{head}\n.nh\n.ad l"


def heading(words: str) -> str:
    """A section."""
    return f".SH {plain(words)}"


def subheading(words: str) -> str:
    """A section of a section."""
    return f".SS {plain(words)}"


def paragraphs(words: str) -> str:
    """Paragraphs, parted by empty lines."""
    return "\n".join(f".PP\n{plain(_flat(part))}" for part in re.split(r"\n\s*\n", words) if part)


def example(lines: Iterable[str]) -> str:
    """Lines that are typed as they stand."""
    return "\n".join([".PP", ".RS 4", ".nf", *(plain(line) for line in lines), ".fi", ".RE"])


def term(what: str, meaning: str) -> str:
    """A term in bold, and below it what it means."""
    return f".TP\n\\fB{plain(what)}\\fR\n{plain(_flat(meaning))}"


def page(parts: Iterable[str]) -> str:
    """The whole page."""
    return "\n".join(parts) + "\n"


def _flat(words: str) -> str:
    return " ".join(words.split())
