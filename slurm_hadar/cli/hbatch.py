"""``hbatch``: sbatch with a declaration. It ends by becoming the real sbatch.

Whatever is not managed goes through as it came. Imports are few and late, for a submit's sake.
"""

from __future__ import annotations

import os
import sys

from slurm_hadar import paths
from slurm_hadar.cli.sbatch_words import (
    Header,
    Line,
    read_argv,
    read_directives,
    read_header,
    settle,
)
from slurm_hadar.domain.errors import HadarError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from slurm_hadar.cli.additions import Additions
    from slurm_hadar.cli.wrapper_site import WrapperSite
    from slurm_hadar.domain.declaration import Declaration

_HELP = """\
usage: hbatch [--hadar-KEY VALUE ...] [options of sbatch] script [arguments]

Everything that sbatch takes goes to sbatch (see sbatch --help). A job is managed by slurm-hadar
when its script has lines like
    #HADAR model=resnet18 types=any gpus=1-4 batch=64:512 samples=5e6 checkpoint=yes
or the same is given as --hadar-model resnet18 --hadar-gpus=1-4 (options beat lines).
--hadar-off leaves a job alone; --hadar-version and this --hadar-help submit nothing.

keys: {keys}
"""


class _Submit:
    """One submit: its words, its script, what the user set, and the site."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.line = read_argv(argv)
        self.environment = dict(environment)
        self.body = b""
        self.name = "the script"
        self.header = Header()
        self.held: dict[str, str | None] = {}
        self.site: WrapperSite | None = None
        self.site_trouble = ""
        self._find_site()

    @property
    def declares(self) -> bool:
        """Whether the owner himself declared anything."""
        return self.header.declares or bool(self.line.ours)

    def _find_site(self) -> None:
        config = paths.config_file(self.environment)
        path = paths.wrapper_file(config)
        if not os.access(path, os.F_OK):
            return
        from slurm_hadar.cli.handover import is_same
        from slurm_hadar.cli.wrapper_site import SiteError, read_site

        try:
            site = read_site(path, config)
        except SiteError as error:
            self.site_trouble = f"{path} is left aside: {error}; hadar check --write renews it"
            return
        conf = self.environment.get("SLURM_CONF")
        if site and conf and site.slurm_conf and not is_same(conf, site.slurm_conf):
            self.site_trouble = f"{path} is left aside: SLURM_CONF names another cluster"
            return
        self.site = site
        if site and site.stale:
            self.site_trouble = f"{path} is older than {config}; hadar check --write renews it"

    def read(self) -> str:
        """Read the script and settle what holds. Returns why that is not possible, or ''."""
        from slurm_hadar.cli.batch_script import NotOurs

        if self.line.het:
            return "heterogeneous jobs are not managed"
        if self.line.unclear:
            return self.line.unclear
        directives = Line()
        if not any(name == "wrap" for name, _ in self.line.options):
            try:
                self._read_script()
            except NotOurs as error:
                return str(error)
            except OSError:
                self.header.refused = True
                return ""
            directives = read_directives(self.header.words)
            if self.header.het:
                return "heterogeneous jobs are not managed"
            if directives.unclear:
                return f"{self.name}: {directives.unclear}"
            if directives.script is not None or directives.refused:
                self.header.refused = True
        self.held = settle(directives, self.environment, self.line)
        return ""

    def _read_script(self) -> None:
        from slurm_hadar.cli.batch_script import find_script, read_handle, read_script

        if "external" in dict(self.line.options):
            self.header.refused = True
            return
        if self.line.script is None:
            self.name = "stdin"
            self.body = read_handle(0)
        else:
            typed = self.line.words[self.line.script]
            self.name = find_script(typed, self.environment.get("PATH", ""))
            self.body = read_script(self.name)
        self.header = read_header(self.body)

    def hand_over(self, added: Additions | None = None) -> NoReturn:
        """Become sbatch: our options before the user's, the Comment behind them."""
        words = list(self.line.words)
        if added:
            words.insert(self.line.end, added.comment)
            words[:0] = added.options
        from slurm_hadar.cli.handover import become_sbatch

        site = self.site
        if site and site.slurm_conf:
            self.environment.setdefault("SLURM_CONF", site.slurm_conf)
        become_sbatch(site.sbatch if site else "sbatch", words, self.environment)


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
        submit.hand_over()
    if submit.line.ours:
        # Before the script is read: a word without its value has taken the script's place.
        _typed(submit)
    why = submit.read()
    if submit.header.refused:
        submit.hand_over()
    if why:
        _unmanaged(submit, why)
    try:
        declaration = _declaration(submit)
        if declaration is None:
            submit.hand_over()
        _manage(submit, declaration)
    except UsageError as error:
        # Whoever declared nothing is not to be stopped by the site's own settings.
        if submit.declares:
            raise
        _unmanaged(submit, str(error))


def _answer(help_wanted: bool) -> int:
    if help_wanted:
        from slurm_hadar.domain.declaration import KEYS

        print(_HELP.format(keys=", ".join(KEYS)), end="")
    else:
        from slurm_hadar import __version__

        print(f"hbatch of slurm-hadar {__version__}")
    return 0


def _unmanaged(submit: _Submit, why: str) -> NoReturn:
    _say(f"the job is not managed: {why}")
    submit.hand_over()


def _declaration(submit: _Submit) -> Declaration | None:
    """What the owner declared, options over lines; None for a job that is not ours to manage."""
    site = submit.site
    if not submit.declares:
        named = set((submit.held.get("partition") or "").split(","))
        if site is None or not named.intersection(site.opt_in):
            return None
    _load_when_used("inspect")
    from slurm_hadar.domain.declaration import Declaration, parse, script_words

    result = Declaration()
    if submit.header.declares:
        text = submit.body.decode(errors="replace")
        for word, where in script_words(text, submit.name):
            result = parse([word], where, result)
    result = _typed(submit, result)
    if not submit.declares and site:
        from slurm_hadar.cli.additions import gpu_request

        request = gpu_request(submit.held)
        if request is None:
            return None
        if site.default_types and not request.types:
            result = parse([f"types={site.default_types}"], "wrapper.default_types", result)
    return result


def _typed(submit: _Submit, base: Declaration | None = None) -> Declaration:
    """The ``--hadar-*`` words over ``base``. Raises UsageError where they make no sense."""
    _load_when_used("inspect")
    from slurm_hadar.domain.declaration import Declaration, parse

    result = base or Declaration()
    for key, value in submit.line.ours:
        text = "yes" if key == "off" and value is None else value or ""
        result = parse([f"{key}={text}"], f"--hadar-{key}", result)
    return result


def _load_when_used(name: str) -> None:
    """Put off an import until something of it is touched.

    dataclasses imports inspect, which would take a third of our time and is not used here.
    importlib's LazyLoader does not serve: a second import of the module loads it.
    """
    if name in sys.modules:
        return

    def load(attribute: str) -> object:
        sys.modules.pop(name, None)
        __import__(name)
        return getattr(sys.modules[name], attribute)

    module = type(sys)(name)
    module.__dict__["__getattr__"] = load
    sys.modules[name] = module


def _manage(submit: _Submit, declaration: Declaration) -> NoReturn:
    from slurm_hadar.cli.additions import add

    site, held = submit.site, submit.held
    if submit.header.foreign and "ignore-pbs" not in held:
        _unmanaged(submit, f"{submit.name} has #PBS or #BSUB lines")
    if held.get("clusters"):
        _unmanaged(submit, "it may go to another cluster")
    added = add(declaration, held, site, lambda: _acts(site))
    if isinstance(added, str):
        _unmanaged(submit, added)
    if submit.site_trouble:
        _say(submit.site_trouble)
    if site:
        submit.environment["HADAR_EXCHANGE"] = site.exchange_dir
        submit.environment["HADAR_CONTROLLER_UID"] = str(site.controller_uid)
    submit.environment["HADAR_SIGNAL"] = declaration.signal
    if "quiet" not in held and not (site and site.quiet):
        _say(_summary(declaration, added))
    submit.hand_over(added)


def _acts(site: WrapperSite | None) -> bool:
    import time

    from slurm_hadar.cli.wrapper_site import controller_acts

    return site is not None and controller_acts(site, time.time())


def _summary(declaration: Declaration, added: Additions) -> str:
    if declaration.off:
        return "the job is left alone, as its Comment says now"
    parts = ["the job is managed; added " + " ".join([*added.options, "and the Comment"])]
    if not added.options:
        parts = ["the job is managed; added the Comment"]
    if added.leased:
        parts.append("while it waits squeue shows BeginTime as the reason")
    return "; ".join(parts + added.notes)


def _say(text: str) -> None:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    # A closed or full stderr must neither stop the submit nor send our words to stdout.
    if sys.stderr is not None:
        try:
            print(f"hbatch: {shown}", file=sys.stderr, flush=True)
        except OSError:
            sys.stderr = None


if __name__ == "__main__":
    sys.exit(main())
