"""``hbatch --hadar-plan``: what would be asked, where the job would go, start and finish per GPU
type. Nothing is submitted. It may be slower than a submit, and import more."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from slurm_hadar import config as configuration
from slurm_hadar import users
from slurm_hadar.cli.batch_script import read_handle
from slurm_hadar.cli.plan_of_job_text import print_json, print_text
from slurm_hadar.cli.real_sbatch import is_same, without_pythons_traces
from slurm_hadar.cli.rollout_remark import MAYBE, remark
from slurm_hadar.cli.sbatch_arguments import read_argv
from slurm_hadar.cli.submit import Submit, SubmitOutcome
from slurm_hadar.cli.wrapper_site import controller_is_active
from slurm_hadar.config import Config
from slurm_hadar.controller.submit_plan.plan import Submission, SubmitPlan, plan_submit
from slurm_hadar.controller.submit_plan.request import Asked
from slurm_hadar.domain.declaration import decode
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.slurm.expected_start import Start, start_of


def show(submit: Submit, outcome: SubmitOutcome) -> int:
    """Print the plan; returns what ``sbatch --test-only`` returns for the same submit.

    Raises HadarError where Slurm does not answer, UsageError for a wrong configuration.
    """
    if submit.line.unclear:
        print(f"hbatch: there is no plan: {submit.line.unclear}", file=sys.stderr, flush=True)
    if submit.line.unclear or submit.line.refused or submit.header.refused:
        # sbatch answers or refuses this by itself; --test-only, should we be wrong about that.
        submit.line.words.insert(0, "--test-only")
        submit.hand_over()
    if submit.once:
        raise UsageError(f"{outcome.why}; a plan asks Slurm several times: give it a file")
    found = _plan(submit, outcome)
    if "json" in submit.line.asked:
        print_json(found)
    else:
        print_text(found)
    if found.alone.refused:
        sys.stderr.write(found.alone.stderr)
    return found.alone.code


def _plan(submit: Submit, outcome: SubmitOutcome) -> SubmitPlan:
    ask = _Questions(submit, outcome)
    notes = [*outcome.doubts, *(outcome.added.notes if outcome.added else [])]
    if outcome.added and outcome.added.omitted:
        notes.append(outcome.added.omitted)
    if submit.site_problem:
        notes.append(submit.site_problem)
    if submit.site is not None and submit.site.rollout is not None and outcome.declaration:
        _, text = remark(submit.site.rollout, submit.held)
        notes += [f"managed {text}" if text == MAYBE else text] if text else []
    config = _config(submit, notes)
    managed = outcome.declaration is not None and not outcome.declaration.off
    why = outcome.why
    if not managed and not why:
        why = "off=yes is declared" if outcome.declaration else "it declares nothing"
    submission = Submission(
        asked=ask.asked,
        start=ask.start,
        listed=ask.listed,
        words=["sbatch", *submit.sbatch_arguments(outcome.added)],
        managed=managed,
        why=why,
        notes=notes,
    )
    found = plan_submit(submission, config)
    active = managed and submit.site is not None and controller_is_active(submit.site, found.now_s)
    return replace(found, controller_active=active)


class _Questions:
    """The submit as Slurm is asked about it."""

    def __init__(self, submit: Submit, outcome: SubmitOutcome) -> None:
        self._options = list(outcome.added.options) if outcome.added else []
        self._behind = list(outcome.added.behind) if outcome.added else []
        self._submit = submit
        self._program = submit.program()
        self._environment = without_pythons_traces(submit.environment)
        self._body = _typed_script(submit)
        behind = dict(read_argv(self._behind).options)
        self.listed = [name for name in (behind.get("partition") or "").split(",") if name]
        uid = os.getuid()
        self.asked = Asked(
            held={
                **dict(read_argv(self._options).options),
                **submit.held,
                **behind,
            },
            # As the job would carry it: the user's own -C and -p stand there too.
            declaration=decode(outcome.added.comment) if outcome.added else None,
            script=submit.name,
            uid=uid,
            user=users.name_of(uid),
        )

    def start(self, more: Sequence[str]) -> Start:
        """When Slurm alone would start it with ``more`` options behind all others."""
        line = self._submit.line
        # A quiet sbatch would not say what it is asked.
        typed = [w for w in line.words[: line.end] if w not in ("-Q", "--quiet")]
        words = [*self._options, *typed, *self._behind, *more, *line.words[line.end :]]
        return start_of(self._program, words, self._environment, self._body)


def _typed_script(submit: Submit) -> bytes | None:
    """The script where it comes on standard input; each question needs it anew."""
    if submit.line.script is not None or "wrap" in dict(submit.line.options):
        return None
    return submit.body if submit.name == "stdin" else read_handle(0)


def _config(submit: Submit, notes: list[str]) -> Config:
    """The site's TOML; where there is none that we may read, Slurm as it is on PATH."""
    path = configuration.find()
    try:
        config = configuration.load_believed(path)
    except UsageError as error:
        if os.access(path, os.R_OK):
            raise
        notes.append(f"{error}. Its policy and GPU types are not known here")
        return Config()
    named = submit.environment.get("SLURM_CONF")
    if named and config.slurm.conf and not is_same(named, str(config.slurm.conf)):
        notes.append(f"{path} is ignored: SLURM_CONF names another cluster")
        return Config()
    return config
