"""``hbatch``: sbatch with a declaration. It ends by becoming the real sbatch.

Whatever is not managed goes through as it came. Imports are few and late, for a submit's sake.
"""

from __future__ import annotations

import os
import sys

from slurm_hadar.cli.submit import Outcome, Submit
from slurm_hadar.domain.errors import HadarError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slurm_hadar.cli.additions import Additions
    from slurm_hadar.cli.submit_prices import Today
    from slurm_hadar.cli.wrapper_site import WrapperSite
    from slurm_hadar.domain.declaration import Declaration


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
    submit = Submit(argv, environment)
    if submit.line.asked & {"help", "version"}:
        return _answer("help" in submit.line.asked)
    outcome = _decide(submit)
    if "plan" in submit.line.asked:
        from slurm_hadar.cli.plan_of_job import show

        return show(submit, outcome)
    if outcome.why:
        _say(f"the job is not managed: {outcome.why}")
    if outcome.added and outcome.declaration:
        _prepare(submit, outcome.declaration, outcome.added)
    submit.hand_over(outcome.added)


def _decide(submit: Submit) -> Outcome:
    """What becomes of a submit. Raises UsageError where its owner's words make no sense."""
    if submit.line.refused:
        return Outcome()
    if submit.line.ours:
        # Before the script is read: a word without its value has taken the script's place.
        _said(submit.line.ours)
    why = submit.read()
    if submit.header.refused:
        return Outcome()
    if why:
        return Outcome(why)
    try:
        declaration = _declaration(submit)
        return Outcome() if declaration is None else _additions(submit, declaration)
    except UsageError as error:
        # Whoever declared nothing is not to be stopped by the site's own settings.
        if submit.declares:
            raise
        return Outcome(str(error))


def _answer(help_wanted: bool) -> int:
    if help_wanted:
        from slurm_hadar.cli.manual_hbatch import help_text

        print(help_text(), end="")
    else:
        from slurm_hadar import __version__

        print(f"hbatch of slurm-hadar {__version__}")
    return 0


def _declaration(submit: Submit) -> Declaration | None:
    """What the owner declared: ``#HADAR`` lines, over them options in ``#SBATCH`` lines, then typed
    ones, as by the plugins. None for a job that is not ours to manage."""
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
    result = _said(submit.in_script, result, f" in {submit.name}")
    result = _said(submit.line.ours, result)
    if not submit.declares and site:
        from slurm_hadar.cli.additions import gpu_request

        request = gpu_request(submit.held)
        if request is None:
            return None
        if site.default_types and not request.types:
            result = parse([f"types={site.default_types}"], "wrapper.default_types", result)
    return result


def _said(
    words: Sequence[tuple[str, str | None]], base: Declaration | None = None, where: str = ""
) -> Declaration:
    """``--hadar-*`` words over ``base``. Raises UsageError where they make no sense."""
    _load_when_used("inspect")
    from slurm_hadar.domain.declaration import Declaration, parse

    result = base or Declaration()
    for key, value in words:
        text = "yes" if key == "off" and value is None else value or ""
        result = parse([f"{key}={text}"], f"--hadar-{key}{where}", result)
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


def _additions(submit: Submit, declaration: Declaration) -> Outcome:
    from slurm_hadar.cli.additions import add

    site, held = submit.site, submit.held
    if submit.header.foreign and "ignore-pbs" not in held:
        return Outcome(f"{submit.name} has #PBS or #BSUB lines")
    if held.get("clusters"):
        return Outcome("it may go to another cluster")
    added = add(declaration, held, site, lambda: _today(site))
    if isinstance(added, str):
        return Outcome(added)
    return Outcome(added=added, declaration=declaration)


def _prepare(submit: Submit, declaration: Declaration, added: Additions) -> None:
    """What a managed job finds in its environment, and our one line about it."""
    site = submit.site
    for trouble in filter(None, (submit.site_trouble, submit.unknown_to_sbatch())):
        _say(trouble)
    if site:
        submit.environment["HADAR_EXCHANGE"] = site.exchange_dir
        submit.environment["HADAR_CONTROLLER_UID"] = str(site.controller_uid)
    submit.environment["HADAR_SIGNAL"] = declaration.signal
    if "quiet" not in submit.held and not (site and site.quiet):
        _say(_summary(declaration, added))


def _today(site: WrapperSite | None) -> Today | None:
    """What is known of GPU types; None where no controller acts that wants one more list of
    partitions."""
    import time

    from slurm_hadar.cli.submit_prices import today
    from slurm_hadar.cli.wrapper_site import takes_lists

    now = time.time()
    return today(site, now) if site is not None and takes_lists(site, now) else None


def _summary(declaration: Declaration, added: Additions) -> str:
    if declaration.off:
        return "the job is left alone, as its Comment says now"
    options = [*added.options, *added.behind]
    what = " ".join([*options, "and the Comment"]) if options else "the Comment"
    return "; ".join([f"the job is managed; added {what}", *added.notes])


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
