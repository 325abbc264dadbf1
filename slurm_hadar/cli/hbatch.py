"""``hbatch``: sbatch with a declaration. It ends by becoming the real sbatch.

Whatever is not managed goes through as it came. Imports are few and late, for a submit's sake.
"""
# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH

from __future__ import annotations

import os
import sys

from slurm_hadar import paths
from slurm_hadar.cli.sbatch_words import Line, read_argv, read_directives, read_header, settle
from slurm_hadar.domain.errors import HadarError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from slurm_hadar.cli.sbatch_words import Header
    from slurm_hadar.cli.wrapper_site import WrapperSite
    from slurm_hadar.domain.declaration import Declaration

_LARGEST_SCRIPT = 4 << 20
"""Bytes; sbatch refuses more (MAX_BATCH_SCRIPT_SIZE in its sources)."""

_HELP = """\
usage: hbatch [--hadar-KEY VALUE ...] [sbatch's options] script [arguments]

Everything that sbatch takes goes to sbatch (see sbatch --help). A job is managed by slurm-hadar
when its script has lines like
    #HADAR model=resnet18 types=any gpus=1-4 batch=64:512 samples=5e6 checkpoint=yes
or the same is given as --hadar-model resnet18 --hadar-gpus=1-4 (options beat lines).
--hadar-off leaves a job alone; --hadar-version and this --hadar-help submit nothing.

keys: {keys}
"""


class _Submit:
    """One submit: the words, the script, the settings and the site."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.line = read_argv(argv)
        self.environment = dict(environment)
        self.body = b""
        self.name = "the script"
        self.header: Header | None = None
        self.held: dict[str, str | None] = {}
        self.site: WrapperSite | None = None
        self.site_error = ""
        self._find_site()

    def _find_site(self) -> None:
        config = paths.config_file(self.environment)
        path = paths.wrapper_file(config)
        if not os.path.exists(path):
            return
        from slurm_hadar.cli.wrapper_site import SiteError, read_site

        try:
            self.site = read_site(path, config)
        except SiteError as error:
            self.site_error = f"{path} is left aside ({error}); write it anew: hadar check --write"
            return
        if self.site is None:
            return
        conf = self.environment.get("SLURM_CONF")
        if conf and self.site.slurm_conf and not _same(conf, self.site.slurm_conf):
            self.site_error = f"SLURM_CONF names another cluster than {path}"
            self.site = None
        elif self.site.stale:
            self.site_error = f"{path} is older than {config}: hadar check --write renews it"

    def read(self) -> str:
        """Read the script and settle what holds. Returns why the job cannot be managed, or ''."""
        line = self.line
        if line.het:
            return "heterogeneous jobs are not managed"
        if line.unclear:
            return line.unclear
        wrapped = any(name == "wrap" for name, _ in line.options)
        directives = Line()
        if not wrapped:
            why = self._read_script()
            if why or self.header is None:
                return why
            directives = read_directives(self.header.words)
            self.header.refused = self.header.refused or directives.script is not None
            if self.header.het:
                return "heterogeneous jobs are not managed"
            if directives.unclear:
                return f"{self.name}: {directives.unclear}"
        self.held = settle(directives, self.environment, line)
        if self.header and self.header.foreign and "ignore-pbs" not in self.held:
            return f"{self.name} has #PBS or #BSUB lines"
        if self.held.get("clusters"):
            return "it goes to the clusters that it names"
        return ""

    def _read_script(self) -> str:
        place = self.line.script
        try:
            if place is None:
                if "external" in dict(self.line.options):
                    return ""
                self.name = "stdin"
                self.body = _read_all(0)
                _put_back(self.body, 0)
            else:
                path = _search(self.line.words[place], self.environment.get("PATH", ""))
                self.name = path
                self.body = _read_path(path)
        except _Unreadable as error:
            return str(error)
        except OSError:
            return ""
        self.header = read_header(self.body)
        return ""

    @property
    def refused(self) -> bool:
        """Whether sbatch will answer or refuse, so that there is nothing for us to say."""
        return self.line.refused or bool(self.header and self.header.refused)


class _Unreadable(Exception):
    """The script cannot be read without taking it away from sbatch."""


def main() -> int:
    """Entry point. Returns only where nothing was submitted; else sbatch takes the process over."""
    try:
        return _run(sys.argv[1:], os.environ)
    except HadarError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    submit = _Submit(argv, environment)
    keys = [key for key, _ in submit.line.ours]
    if "help" in keys or "version" in keys:
        return _answer("help" in keys)
    if submit.line.refused:
        _become_sbatch(submit, [])
    why = submit.read()
    if submit.refused:
        _become_sbatch(submit, [])
    if why:
        if submit.line.ours or submit.line.het or not submit.held or _declares(submit):
            _say(f"submitted unmanaged: {why}")
        _become_sbatch(submit, [])
    declaration = _declaration(submit)
    if declaration is None:
        _become_sbatch(submit, [])
    _manage(submit, declaration)


def _declares(submit: _Submit) -> bool:
    return bool(submit.line.ours or (submit.header and submit.header.declares))


def _declaration(submit: _Submit) -> Declaration | None:
    """What the owner declared, in lines or options; None for a job that is not ours to manage."""
    site = submit.site
    declares = _declares(submit)
    if not declares:
        named = set((submit.held.get("partition") or "").split(","))
        if site is None or not named.intersection(site.opt_in):
            return None
    from slurm_hadar.domain.declaration import Declaration, parse, script_words

    result = Declaration()
    if submit.header and submit.header.declares:
        text = submit.body.decode(errors="replace")
        for word, where in script_words(text, submit.name):
            result = parse([word], where, result)
    for key, value in submit.line.ours:
        text = "yes" if key == "off" and value is None else value or ""
        result = parse([f"{key}={text}"], f"--hadar-{key}", result)
    if not declares:
        from slurm_hadar.cli.additions import gpu_request

        request = gpu_request(submit.held)
        if request is None:
            return None
        if site and site.default_types and not request.types:
            result = parse([f"types={site.default_types}"], "wrapper.default_types", result)
    return result


def _manage(submit: _Submit, declaration: Declaration) -> NoReturn:
    from slurm_hadar.cli.additions import add

    site = submit.site

    def acts() -> bool:
        import time

        from slurm_hadar.cli.wrapper_site import controller_acts

        return site is not None and controller_acts(site, time.time())

    added = add(declaration, submit.held, site, acts)
    if isinstance(added, str):
        _say(f"submitted unmanaged: {added}")
        _become_sbatch(submit, [])
    if submit.site_error:
        _say(submit.site_error)
    if site:
        submit.environment["HADAR_EXCHANGE"] = site.exchange_dir
        submit.environment["HADAR_CONTROLLER_UID"] = str(site.controller_uid)
    submit.environment["HADAR_SIGNAL"] = declaration.signal
    if "quiet" not in submit.held and not (site and site.quiet):
        what = "left alone as declared" if declaration.off else "managed"
        said = [" ".join([f"{what};", *(["added", *added.options] if added.options else [])])]
        if not added.options:
            said = [f"{what}; added the declaration in the Comment"]
        if added.leased:
            said.append("squeue shows BeginTime as the reason while it waits")
        _say("; ".join(said + added.notes))
    _become_sbatch(submit, added.options, [added.comment])


def _answer(help_wanted: bool) -> int:
    if help_wanted:
        from slurm_hadar.domain.declaration import KEYS

        print(_HELP.format(keys=", ".join(KEYS)), end="")
    else:
        from slurm_hadar import __version__

        print(f"hbatch of slurm-hadar {__version__}")
    return 0


def _become_sbatch(submit: _Submit, first: Sequence[str], last: Sequence[str] = ()) -> NoReturn:
    """Replace this process. ``first`` before the user's options, ``last`` behind them."""
    line, environment, site = submit.line, submit.environment, submit.site
    words = ["sbatch", *first, *line.words]
    if last:
        place = len(line.words) if line.script is None else line.script
        if line.words[place - 1 : place] == ["--"]:
            place -= 1
        words[1 + len(first) + place : 1 + len(first) + place] = last
    program = _find_sbatch(site.sbatch if site else "sbatch", environment.get("PATH", ""))
    if site and site.slurm_conf:
        environment.setdefault("SLURM_CONF", site.slurm_conf)
    _undo_pythons_traces(environment)
    sys.stderr.flush()
    try:
        os.execve(program, words, environment)
    except OSError as error:
        raise HadarError(f"{program} cannot be run: {error.strerror}") from None


def _find_sbatch(named: str, path: str) -> str:
    """The real sbatch; never hbatch itself under that name. Raises UsageError."""
    if os.path.isabs(named) and _is_sbatch(named):
        return named
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", "sbatch")
        if _is_sbatch(candidate):
            return candidate
    raise HadarError("there is no sbatch on PATH; add the folder of Slurm's commands to it")


def _is_sbatch(path: str) -> bool:
    if not os.access(path, os.X_OK) or os.path.isdir(path) or _same(path, sys.argv[0]):
        return False
    try:
        with open(path, "rb") as stream:
            start = stream.read(512)
    except OSError:
        return True
    return not (start.startswith(b"#!") and b"slurm_hadar.cli.hbatch" in start)


def _undo_pythons_traces(environment: dict[str, str]) -> None:
    """The job must not see that a Python came before sbatch: its locale and its signals."""
    import signal

    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    if environment.get("LC_CTYPE") == "C.UTF-8":
        with open("/proc/self/environ", "rb") as stream:
            if b"LC_CTYPE=" not in b"\0" + stream.read():
                del environment["LC_CTYPE"]


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other


def _search(name: str, path: str) -> str:
    """Where sbatch finds a script: here, then along PATH, unless the name starts with . or /."""
    if name.startswith((".", "/")):
        return name
    for folder in ("", *path.split(":")):
        found = os.path.join(folder, name)
        if os.path.exists(found) and not os.path.isdir(found):
            return found
    return name


def _read_path(path: str) -> bytes:
    """The script's bytes. One that comes down a pipe is put back for sbatch under its own name."""
    import stat

    kind = os.stat(path).st_mode
    if stat.S_ISREG(kind):
        with open(path, "rb") as stream:
            return stream.read(_LARGEST_SCRIPT + 1)
    folder, _, number = path.rpartition("/")
    if path == "/dev/stdin":
        folder, number = "/dev/fd", "0"
    if folder not in ("/dev/fd", "/proc/self/fd") or not number.isdecimal():
        raise _Unreadable(f"{path} is no ordinary file")
    body = _read_all(int(number))
    _put_back(body, int(number))
    return body


def _read_all(handle: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size <= _LARGEST_SCRIPT and (part := os.read(handle, 1 << 16)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _put_back(body: bytes, handle: int) -> None:
    memory = os.memfd_create("script")
    with open(memory, "wb", closefd=False) as stream:
        stream.write(body)
    os.lseek(memory, 0, os.SEEK_SET)
    os.dup2(memory, handle)


def _say(text: str) -> None:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    print(f"hbatch: {shown}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
