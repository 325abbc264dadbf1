"""What hbatch has to say about itself: for ``--hadar-help`` and for its man page.

Read only where it is asked for, never by a submit.
"""

from __future__ import annotations

from slurm_hadar.domain.declaration import KEYS

PURPOSE = "submit a batch job to Slurm with a declaration of the GPUs that it accepts"
USAGE = "hbatch [--hadar-KEY VALUE ...] [options of sbatch] script [arguments]"

DESCRIPTION = """\
Everything that sbatch takes goes to sbatch (see sbatch --help); stdout and exit code are its own.

A job is managed by slurm-hadar when its script has #HADAR lines, or when the same is given as
options (where the site has the SPANK plugin, in #SBATCH lines too). Options beat lines:"""

EXAMPLES = (
    "#HADAR model=resnet18 types=any gpus=1-4 batch=64:512 samples=5e6 checkpoint=yes",
    "hbatch --hadar-model resnet18 --hadar-gpus=1-4 train.sh",
)

QUESTIONS = {
    "--hadar-plan [--json]": "show the request, the expected placement, and start and finish on "
    "each GPU type; submit nothing",
    "--hadar-off": "do not manage this job",
    "--hadar-help": "show this text",
    "--hadar-version": "show the version",
}

MEANING = {
    "model": ("NAME", "name in the throughput tables, such as resnet18; default: the job's name"),
    "types": ("any|TYPE,...", "accepted GPU types; default: those of the request"),
    "gpus": ("N|N-M|N,M", "GPU counts that the script supports; default: that of the request"),
    "gpu_mem": ("SIZE", "least memory of a GPU, such as 24G"),
    "batch": ("N|N:M", "global batch in samples, fixed or a range"),
    "samples": ("N", "all the work in samples, such as 5e6"),
    "epochs": ("N", "all the work in epochs; needs dataset_size"),
    "dataset_size": ("N", "samples of an epoch"),
    "checkpoint": (
        "HOW",
        "how it saves, and so may be moved: yes, signal, restart or watch:PATH; default: no",
    ),
    "signal": (
        "[B:|F:]NAME[@S]",
        "signal to save on, to whom, and seconds it takes; default: USR2",
    ),
    "lose": ("SECONDS", "most work that a move may cost, with checkpoint=restart or watch:PATH"),
    "checkpoint_exit_code": ("N", "exit code that says: I saved, start me again"),
    "max_requeues": (
        "N",
        "most times it is requeued before its time limit ends, where the site allows it; default 0",
    ),
    "progress": ("PATTERN", "how its output or files show how far it is, such as step={step*64}"),
    "restart_cost": ("SECONDS", "cost of a move, until it is measured"),
    "wait": ("SECONDS", "longest wait for a type on which it would end sooner; 0: none"),
    "cost": ("any", "may be billed more than its request; default: never knowingly"),
    "fork": ("1-N", "may run as copies on up to N nodes of any types"),
    "tasks": ("N", "equal parts of a global batch, dealt over the copies by their speed"),
    "backfill": ("yes|no", "may train on idle nodes; needs checkpoint=yes"),
    "nodes": ("1-N", "on how many nodes it may be spread, or train while they are idle"),
    "cpus": ("N|N-M", "CPUs per GPU"),
    "mem": ("SIZE|SIZE-SIZE", "memory per GPU"),
    "off": ("yes|no", "do not manage this job"),
    "pin": ("yes|no", "place it, and do not move it once it runs"),
}
"""Key -> what it takes, and what it means. A test holds it to :data:`KEYS`."""

CHOICES = {"backfill", "off", "pin"}
"""Keys that take yes or no."""


def help_text() -> str:
    """The text of ``--hadar-help``."""
    left = max(len(f"{key}={takes}") for key, (takes, _) in MEANING.items())
    lines = [f"usage: {USAGE}", "", DESCRIPTION, *(f"    {line}" for line in EXAMPLES), ""]
    lines.append("keys, in #HADAR lines or as --hadar-KEY VALUE:")
    for key in KEYS:
        takes, meaning = MEANING[key]
        lines.append(f"  {f'{key}={takes}':{left}}  {meaning}")
    lines += ["", "options that print and submit nothing, or opt out:"]
    lines += [f"  {option:{left}}  {meaning}" for option, meaning in QUESTIONS.items()]
    return "\n".join(lines) + "\n"
