"""``hbatch``: sbatch with a declaration. It ends by becoming the real sbatch, or, where there is
something to say about the job, by running it and saying so behind it.

Whatever is not managed goes through as it came. Imports are few and late, for a submit's sake.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from slurm_hadar.cli.real_sbatch import ANSWER, GUARD
from slurm_hadar.cli.submit import Submit, SubmitOutcome
from slurm_hadar.domain.errors import HadarError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import NoReturn

    from slurm_hadar.cli.submit_prices import ExchangeQuery, Today
    from slurm_hadar.cli.wrapper_site import WrapperSite
    from slurm_hadar.domain.declaration import Declaration


def program() -> NoReturn:
    """Entry point: :func:`main`, and the end of the process without taking the interpreter down,
    which would cost a submit several milliseconds."""
    # What a submit makes goes with its process.
    gc.disable()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed, or without a reader
    os._exit(code)


def main() -> int:
    """sbatch's exit code, or ours where nothing was submitted."""
    try:
        return _run(sys.argv[1:], os.environ)
    except HadarError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Of a plan: ``| head`` is no failure.
        return 0


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    if environment.get(GUARD):
        # A script under the name of sbatch came back to us: see real_sbatch.comes_back.
        return _answer(help_wanted=False)
    submit = Submit(argv, environment)
    if submit.line.asked & {"help", "version"}:
        return _answer("help" in submit.line.asked)
    outcome = _decide(submit)
    _refuse_impossible(submit, outcome)
    if "plan" in submit.line.asked:
        if sys.flags.no_site:
            # For the libraries, which only the plan needs.
            import site

            site.main()
        from slurm_hadar.cli.plan_of_job import show

        outcome.doubts = _doubts(submit, outcome)
        return show(submit, outcome)
    if outcome.added and outcome.declaration:
        _prepare(submit, outcome.declaration)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # Whether a list is refused could not be found out; a controller writes it, if any acts.
        from slurm_hadar.cli.refused_list import without_list

        submit.hand_over(without_list(submit, outcome))
    return _run_and_say(submit, outcome)


def _run_and_say(submit: Submit, outcome: SubmitOutcome) -> int:
    """Run sbatch, or become it where there is nothing to say. What takes a while to find out is
    looked for while sbatch runs."""
    remarked = _has_remark(submit, outcome)
    if not remarked:
        outcome.doubts = [] if "quiet" in submit.held else _doubts(submit, outcome)
        if not (outcome.doubts or submit.in_script or (outcome.added and outcome.added.listed)):
            submit.hand_over(outcome.added)
    remarks: list[str] = []

    def look() -> None:
        if remarked:
            outcome.doubts = _doubts(submit, outcome)
            remarks.extend(_remarks(submit, outcome))

    if outcome.added and outcome.added.listed:
        from slurm_hadar.cli import refused_list

        say = _say if "quiet" not in submit.held else _say_nothing
        code, is_refused = refused_list.run(submit, outcome, look, say)
        if is_refused and remarked:
            remarks = _remarks(submit, outcome)
    else:
        code = submit.run(outcome.added, look)
    for doubt in outcome.doubts:
        _say(doubt)
    if code == 0:
        for line in remarks:
            _say(line)
    elif why := submit.unknown_to_sbatch():
        _say(why)
    return code


def _decide(submit: Submit) -> SubmitOutcome:
    """What becomes of a submit. Raises UsageError where its arguments or lines make no sense."""
    if submit.line.refused:
        return SubmitOutcome()
    if submit.line.ours:
        # Before the script is read: a word without its value has taken the script's place.
        _with_options(submit.line.ours)
    why = submit.read()
    if submit.header.refused:
        return SubmitOutcome()
    if why:
        return SubmitOutcome(why)
    site = submit.site
    if site is not None and submit.declares:
        named = submit.held.get("partition")
        if site.may_list(site.default_partition if named is None else named):
            # The answer comes while the declaration is read.
            _exchange_query(submit, site).begin()
    try:
        declaration = _declaration(submit)
        return SubmitOutcome() if declaration is None else _additions(submit, declaration)
    except UsageError as error:
        # A submit that declares nothing is not to be stopped by the site's own settings.
        if submit.declares:
            raise
        return SubmitOutcome(str(error))


def _answer(help_wanted: bool) -> int:
    if help_wanted:
        from slurm_hadar.cli.manual_hbatch import help_text

        print(help_text(), end="")
    else:
        from slurm_hadar import __version__

        print(f"{ANSWER} {__version__}")
    return 0


def _declared(submit: Submit, outcome: SubmitOutcome) -> Declaration | None:
    """What the owner declared; None where the job is to be left alone."""
    declared = outcome.declaration if submit.declares else None
    return None if declared is None or declared.off else declared


def _refuse_impossible(submit: Submit, outcome: SubmitOutcome) -> None:
    """Raises UsageError for what no node of the site can give."""
    declared = _declared(submit, outcome)
    if declared is not None:
        from slurm_hadar.cli.declaration_warnings import gpus_of_nodes, in_all, refuse_impossible

        refuse_impossible(
            declared, lambda: in_all(gpus_of_nodes(submit.program(), submit.environment))
        )


def _doubts(submit: Submit, outcome: SubmitOutcome) -> list[str]:
    """What its owner can hardly mean as it stands."""
    declared = _declared(submit, outcome)
    doubts: list[str] = []
    if declared is not None:
        from slurm_hadar.cli.submit_doubts import doubts_of

        doubts += doubts_of(submit, declared)
    if b"hadar" in submit.body.lower() or _nearly_hadar(submit.body):
        from slurm_hadar.cli.declaration_warnings import lookalikes

        doubts += lookalikes(submit.body, submit.name)
    return doubts


def _nearly_hadar(body: bytes) -> bool:
    """Whether a comment may be a misspelled declaration; quick, so it says yes too often."""
    comments = (line.lstrip(b"# \t") for line in body.split(b"\n#")[1:])
    return any(text[:1] in b"hH" and b"=" in text.partition(b"\n")[0] for text in comments if text)


def _declaration(submit: Submit) -> Declaration | None:
    """What the owner declared: ``#HADAR`` lines, over them options in ``#SBATCH`` lines, then typed
    ones, as by the plugins. None for a job that is not ours to manage."""
    site = submit.site
    if not submit.declares:
        if site is None:
            return None
        named = (submit.held.get("partition") or site.default_partition).split(",")
        if not set(named).intersection(site.opt_in):
            return None
    _load_when_used("copy", "inspect")
    from slurm_hadar.domain.declaration import Declaration, parse

    result = Declaration()
    if submit.header.declares:
        from slurm_hadar.cli.batch_script import script_arguments

        text = submit.body.decode(errors="replace")
        for word, where in script_arguments(text, submit.name):
            result = parse([word], where, result)
    result = _with_options(submit.in_script, result, f" in {submit.name}")
    result = _with_options(submit.line.ours, result)
    if not submit.declares and site:
        from slurm_hadar.cli.additions import gpu_request

        request = gpu_request(submit.held)
        if request is None:
            return None
        if site.default_types and not request.types:
            result = parse([f"types={site.default_types}"], "wrapper.default_types", result)
    return result


def _with_options(
    options: Sequence[tuple[str, str | None]], base: Declaration | None = None, where: str = ""
) -> Declaration:
    """``--hadar-*`` options over ``base``. Raises UsageError where they make no sense."""
    _load_when_used("copy", "inspect")
    from slurm_hadar.domain.declaration import Declaration, parse

    result = base or Declaration()
    for key, value in options:
        text = "yes" if key == "off" and value is None else value or ""
        result = parse([f"{key}={text}"], f"--hadar-{key}{where}", result)
    return result


def _load_when_used(*names: str) -> None:
    """Put off imports until something of them is touched.

    dataclasses imports copy and inspect, which would take a third of our time and are not used
    here. importlib's LazyLoader does not serve: a second import of the module loads it.
    """
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _loaded_when_used(name)


def _loaded_when_used(name: str) -> ModuleType:
    def load(attribute: str) -> object:
        sys.modules.pop(name, None)
        __import__(name)
        return getattr(sys.modules[name], attribute)

    module = type(sys)(name)
    module.__dict__["__getattr__"] = load
    return module


def _additions(submit: Submit, declaration: Declaration) -> SubmitOutcome:
    from slurm_hadar.cli.additions import add, gpus_not_asked_for

    site, held = submit.site, submit.held

    def prices() -> Today | None:
        if site is None:
            return None
        return _exchange_query(submit, site).today(bool(declaration.checkpoint), _say)

    clusters = held.get("clusters")
    if clusters and not (site and clusters == site.cluster):
        more = gpus_not_asked_for(declaration, held)
        return SubmitOutcome(f"it may go to another cluster{more}")
    added = add(declaration, held, site, prices)
    if isinstance(added, str):
        return SubmitOutcome(added + gpus_not_asked_for(declaration, held))
    return SubmitOutcome(added=added, declaration=declaration)


def _exchange_query(submit: Submit, site: WrapperSite) -> ExchangeQuery:
    if submit.exchange is None:
        from slurm_hadar.cli.submit_prices import ExchangeQuery

        submit.exchange = ExchangeQuery(site)
    return submit.exchange


def _prepare(submit: Submit, declaration: Declaration) -> None:
    """What a managed job finds in its environment."""
    site = submit.site
    if site:
        submit.environment["HADAR_EXCHANGE"] = site.exchange_dir
        submit.environment["HADAR_CONTROLLER_UID"] = str(site.controller_uid)
    submit.environment["HADAR_SIGNAL"] = declaration.asks.name
    if declaration.habit == "watch":
        submit.environment["HADAR_CHECKPOINT"] = declaration.checkpoint
    if declaration.progress and declaration.habit != "yes":
        submit.environment["HADAR_PROGRESS"] = declaration.progress


def _has_remark(submit: Submit, outcome: SubmitOutcome) -> bool:
    """Whether there is a line to say once sbatch has taken the job. Under ``--wait`` sbatch ends
    with the job, too late for it, and ``--gres=help`` submits nothing."""
    quiet = "quiet" in submit.held or (submit.site is not None and submit.site.quiet)
    if quiet or not submit.declares or {"test-only", "wait"} & submit.held.keys():
        return False
    if submit.held.get("gres") == "help":
        return False
    return bool(outcome.why or (outcome.added and outcome.declaration))


def _remarks(submit: Submit, outcome: SubmitOutcome) -> list[str]:
    """What we say once sbatch has taken the job: which GPU types it does not get, and whether it is
    managed."""
    omitted = outcome.added.omitted if outcome.added else ""
    return list(filter(None, (omitted, _remark(submit, outcome))))


def _remark(submit: Submit, outcome: SubmitOutcome) -> str:
    """The one line that we say once sbatch has taken the job; empty for none.

    Only to whom declared something. It has no digit: who looks for the job's number in all that a
    submit prints finds sbatch's.
    """
    added, why = outcome.added, outcome.why
    if outcome.declaration is not None and outcome.declaration.off:
        from slurm_hadar.cli.additions import gpus_not_asked_for

        return "the job is not managed: off=yes" + gpus_not_asked_for(
            outcome.declaration, submit.held
        )
    more: list[str] = []
    if added:
        more = [*added.notes, *filter(None, (submit.site_problem,))]
        why = why or ("" if added.has_gpus else "it asks for no GPU")
    if not why and submit.site is not None and submit.site.rollout is not None:
        from slurm_hadar.cli.rollout_remark import remark

        outside, text = remark(submit.site.rollout, submit.held)
        why = text if outside else ""
        more += [text] if text and not outside else []
    if why:
        state = "the job is not managed"
        more.insert(0, why)
    elif added is None or outcome.declaration is None:
        return ""
    else:
        state = "the job is managed"
        if submit.site is None:
            state = "it is not known whether a controller manages the job"
        elif not _exchange_query(submit, submit.site).has_active_controller():
            state = "the job will be managed"
            more.append("no controller is acting now, and until one does it is an ordinary job")
        if submit.site and any("not steered" in doubt for doubt in outcome.doubts):
            # A line above says why.
            state += ", but not steered"
    plain = [text for text in more if not any(letter.isdigit() for letter in text)]
    details = "; for details: hbatch --hadar-plan" if len(plain) < len(more) else ""
    return (f"{state}: {'; '.join(plain)}" if plain else state) + details


def _say(text: str) -> None:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    # A closed or full stderr must neither stop the submit nor send our messages to stdout.
    if sys.stderr is not None:
        try:
            print(f"hbatch: {shown}", file=sys.stderr, flush=True)
        except OSError:
            sys.stderr = None


def _say_nothing(text: str) -> None:
    """Of a submit with ``--quiet``."""


if __name__ == "__main__":
    program()
