"""One submit: its arguments, its script, what the user set, and what becomes of it."""

from __future__ import annotations

import os

from slurm_hadar import paths
from slurm_hadar.cli.sbatch_parser import (
    CommandLine,
    Header,
    merged_options,
    read_argv,
    read_directives,
    read_header,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from slurm_hadar.cli.additions import Additions
    from slurm_hadar.cli.submit_prices import ExchangeQuery
    from slurm_hadar.cli.wrapper_site import WrapperSite
    from slurm_hadar.domain.declaration import Declaration


class SubmitOutcome:
    """What becomes of a submit. ``doubts``: what its owner can hardly mean as it stands.

    ``why``: it goes unmanaged for this reason; ``added``: it is managed, with these additions.
    Neither: it is not ours, or sbatch refuses it by itself.
    """

    __slots__ = ("added", "declaration", "doubts", "why")

    def __init__(
        self,
        why: str = "",
        added: Additions | None = None,
        declaration: Declaration | None = None,
    ) -> None:
        self.why = why
        self.added = added
        self.declaration = declaration
        self.doubts: list[str] = []


class Submit:
    """One submit: its arguments, its script, what the user set, and the site."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.line = read_argv(argv)
        self.environment = dict(environment)
        self.body = b""
        self.name = "the script"
        self.header = Header()
        self.in_script: list[tuple[str, str | None]] = []
        """(key, value) of the ``--hadar-*`` options in the script's ``#SBATCH`` lines."""
        self.held: dict[str, str | None] = {}
        self.site: WrapperSite | None = None
        self.site_problem = ""
        self._sbatch = ""
        self.exchange: ExchangeQuery | None = None
        """What the exchange folder is asked; None: nothing yet."""
        self.once = False
        """Whether the script can be read one time only."""
        self._find_site()

    @property
    def declares(self) -> bool:
        """Whether the owner declared anything."""
        return self.header.declares or bool(self.line.ours or self.in_script)

    def _find_site(self) -> None:
        config = paths.config_file(self.environment)
        path = paths.wrapper_file(config)
        if not os.access(path, os.F_OK):
            self.site_problem = (
                "no configuration of the site is found "
                "(hadar check --write makes it known to hbatch)"
            )
            return
        from slurm_hadar.cli.real_sbatch import is_same
        from slurm_hadar.cli.wrapper_site import SiteError, read_site

        try:
            site = read_site(path, config)
        except SiteError as error:
            self.site_problem = f"{path} is ignored: {error}; renew it with: hadar check --write"
            return
        conf = self.environment.get("SLURM_CONF")
        if site and conf and site.slurm_conf and not is_same(conf, site.slurm_conf):
            self.site_problem = f"{path} is ignored: SLURM_CONF names another cluster"
            return
        self.site = site
        if site and site.stale:
            self.site_problem = f"{path} is older than {config}; renew it with: hadar check --write"

    def read(self) -> str:
        """Read the script and merge its options. Returns why that is not possible, or ''."""
        from slurm_hadar.cli.batch_script import ReadableOnce

        if self.line.unclear:
            self._look_for_declaration()
            return self.line.unclear
        directives = CommandLine()
        if not any(name == "wrap" for name, _ in self.line.options):
            try:
                self._read_script()
            except ReadableOnce as error:
                self.once = True
                return str(error)
            except OSError:
                self.header.refused = True
                return ""
            directives = read_directives(self.header.words)
        self.in_script = directives.ours
        self.held = merged_options(directives, self.environment, self.line)
        if self.line.het or self.header.het:
            return "heterogeneous jobs are not managed"
        if directives.unclear:
            return f"{self.name}: {directives.unclear}"
        if directives.script is not None or directives.refused:
            self.header.refused = True
        if self.header.foreign and "ignore-pbs" not in self.held:
            from slurm_hadar.cli.foreign_directives import translated

            directives.options += translated(self.body, dict(directives.options))
            self.held = merged_options(directives, self.environment, self.line)
        return ""

    def _look_for_declaration(self) -> None:
        """The script of a line that is not understood: one of the next two arguments, if any is."""
        from slurm_hadar.cli.batch_script import ReadableOnce, read_script

        for word in self.line.words[self.line.end :][:2]:
            try:
                self.header.declares |= read_header(read_script(word)).declares
            except (ReadableOnce, OSError):
                continue

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

    def sbatch_arguments(self, added: Additions | None) -> list[str]:
        """The arguments of sbatch: our options before the user's; behind them, so that they win,
        the Comment and the list of partitions."""
        words = list(self.line.words)
        if added:
            words[self.line.end : self.line.end] = [added.comment, *added.behind]
            words[:0] = added.options
        return words

    def unknown_to_sbatch(self) -> str:
        """What to say where the script has options of ours that this sbatch refuses; else empty."""
        if not self.in_script:
            return ""
        from slurm_hadar.cli.real_sbatch import knows

        key = self.in_script[0][0]
        if knows(self.program(), f"--hadar-{key}", self.environment):
            return ""
        return (
            f"this sbatch knows no --hadar-{key}, which stands in an #SBATCH line of {self.name} "
            "(the site has no SPANK plugin for it); a #HADAR line does the same everywhere"
        )

    def program(self) -> str:
        """The sbatch to submit with; its cluster's slurm.conf goes into the environment.

        Raises :class:`HadarError` where there is none.
        """
        from slurm_hadar.cli.real_sbatch import find_sbatch

        site = self.site
        if not self._sbatch:
            if site and site.slurm_conf:
                self.environment.setdefault("SLURM_CONF", site.slurm_conf)
            self._sbatch = find_sbatch(site.sbatch if site else "sbatch", self.environment)
        return self._sbatch

    def hand_over(self, added: Additions | None = None) -> NoReturn:
        """Become sbatch."""
        from slurm_hadar.cli.real_sbatch import become_sbatch

        become_sbatch(self.program(), self.sbatch_arguments(added), self.environment)

    def run(self, added: Additions | None, meanwhile: Callable[[], None]) -> int:
        """Run sbatch as a child; its exit code. For a submit that we say something about.

        ``meanwhile`` is called while it runs.
        """
        from slurm_hadar.cli.real_sbatch import run_sbatch

        words = self.sbatch_arguments(added)
        return run_sbatch(self.program(), words, self.environment, meanwhile)
