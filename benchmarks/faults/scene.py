"""The jobs of a trial, one in each state that a tick acts on, and the sandbox that they are on."""

import sys
from pathlib import Path
from typing import Literal

from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions

ROOT = Path(__file__).parents[2]
Rights = Literal["sandbox", "user"]
MODEL = "paced"
SPEEDS = {"v100": 240.0, "p100": 160.0, "k80": 120.0, "a100": 240.0}
"""Samples/s."""
SAMPLES = 2400
"""They train 10 s at least: a slow machine must come to the tick before they end."""
STALL_S = 35.0
"""So long a controller is stopped: longer than all times of SHORT."""
STALL_SAMPLES = 9600
"""With these they train for longer than it is stopped."""
SHORT = {"ack_wait_s": 20.0, "settle_s": 20.0}
"""Times of the controller where it is stopped."""
RARE, RARE_NODE = "a100", "a1"
DIGITS = "digits.npy"
"""What the trainings read, beside the folders of the trials."""
LAYOUT = Layout(
    (
        NodeGroup("v", 2, "v100", 1),
        NodeGroup("p", 1, "p100", 1),
        NodeGroup("k", 2, "k80", 1),
        NodeGroup("a", 1, RARE, 1),
    )
)
"""Partition ``gpu`` is a group here: it stands for one partition per type."""
CRED_EXPIRE_S = 5
"""Slurm takes no less, and 120 s instead."""
BEGINS_S = 40
"""What is left of an earlier release's begin time when the tick begins."""

_START = """exec 9>>{folder}/{name}.lock
flock -n 9 || echo twice >> {folder}/{name}.starts
echo "${{SLURM_RESTART_COUNT:-0}}" >> {folder}/{name}.starts
"""
_TRAINING = f"""#!/bin/bash
#HADAR model={{model}} types=any gpus=1 batch=8:16 samples={{samples}} checkpoint=yes
{_START}exec {{python}} {{root}}/benchmarks/small_torch.py \\
  {{root}}/examples/train_digits.py --model {{model}} --batch 8:16 \\
  --samples {{samples}} --checkpoint {{folder}}/{{name}}.pt --data {{folder}}/../{{digits}} \\
  --lineage {{folder}}/{{name}}.json --every 600
"""
_SHORT = f"""#!/bin/bash
#HADAR types={{types}} gpus=1
{_START}exec sleep 2
"""
_ENDS = f"""#!/bin/bash
#HADAR types=any gpus=1 checkpoint=yes
{_START}cd {{root}} && exec {{python}} -m benchmarks.faults.ends {{folder}}/{{over}}
"""
TRAININGS = ("moves", "stops")
ENDS = "ends"
RUNNING = (*TRAININGS, ENDS)
"""Jobs that run when the tick begins, on all GPUs but those of type v100. The last one ends when it
is asked to save, or at last when OVER is in the folder."""
OVER = "over"
HELD = {"fails": "launch failed", "cannot": "badconstraints"}
"""Jobs that Slurm holds when the tick begins, and its reason: a prolog failed on its node; no node
has the feature any more by which an earlier release had placed it."""
PREFERS, BEGINS, LEAVES, ALONE = "prefers", "begins", "leaves", "alone"
WAITING = (PREFERS, BEGINS, LEAVES, ALONE)
"""Eligible jobs, of which each starts as soon as a GPU other than a v100 is free: one that gets a
list of partitions; one with an earlier release's begin time, which the tick releases; one with a
list, whose owner gave it a constraint that only Slurm can read, so that its own partition is
restored; one whose list is right."""
JOBS = (*RUNNING, *HELD, *WAITING)
KINDS = {"hint", "move", "release", "undo"}
"""What the tick does to them, in the words of the journal; a stop is a move too."""
ODD_CONSTRAINT = "[p100|k80]"
_OPTIONS = {"fails": ("-pv100",), BEGINS: ("--begin=now+600",)}
_SLOW = ("cannot", PREFERS, BEGINS, ALONE)
"""Jobs that may not have the type to which others move."""

EARLIER = {
    "moves": {"Partition": "k80,p100,v100"},
    "stops": {"Partition": "p100,k80,v100"},
    ENDS: {"Partition": "k80,p100,v100"},
    "cannot": {"Features": RARE},
    LEAVES: {"Partition": "k80,p100"},
    ALONE: {"Partition": "p100,k80"},
}
"""What earlier ticks have sent: lists of partitions, and an earlier release a placement."""

_BATCH = 16
ASKED = {
    "moves": Placement({"v100": 1}, batch=_BATCH),
    ENDS: Placement({"v100": 1}),
    PREFERS: Placement({"k80": 1}),
    ALONE: Placement({"p100": 1}),
}
"""What the policy answers in the tick that dies: one moves, one stops, one ends as it is to move;
the others wait, each for the type that it shall prefer."""
PREFERRED = ("k80", "p100")
"""The list that PREFERS gets for that."""
ALL = {
    **ASKED,
    "stops": Placement({"p100": 1}),
    "fails": Placement({"v100": 1}),
    "cannot": Placement({"p100": 1}),
    BEGINS: Placement({"p100": 1}),
}
"""And at last."""


def options(name: str) -> tuple[str, ...]:
    """What is said to sbatch beside the script. All are held until the scene is set."""
    return ("-H", *_OPTIONS.get(name, ()))


def steering(name: str, partition: str, features: str, now: float) -> Steering:
    """What was kept when :data:`EARLIER` was sent. ``partition``, ``features``: its owner's."""
    sent, owners = EARLIER[name], {"Partition": partition, "Features": features}
    was = {key: owners[key] for key in sent}
    if "Features" in sent:
        # That release did not keep what it wrote.
        return Steering(gpus={RARE: 1}, time=now, was=was)
    return Steering(time=now, was=was, wrote=sent)


def script(folder: Path, name: str, samples: int) -> str:
    """The batch script of a job; its files lie in ``folder``. ``samples``: of a training."""
    values = {
        "folder": folder, "name": name, "python": sys.executable, "root": ROOT, "over": OVER,
        "digits": DIGITS,
    }  # fmt: skip
    text = _TRAINING if name in TRAININGS else _ENDS if name == ENDS else _SHORT
    types = "p100,k80" if name in _SLOW else "any"
    return text.format(**values, model=MODEL, samples=samples, types=types)


def sandbox(folder: Path, rights: Rights, stalls: bool = False) -> Sandbox:
    """A sandbox for trials, one after another.

    ``rights``: as of a site; under "user" the controller keeps what it did as on real sites.
    ``stalls``: whether controllers are stopped in it.
    """
    moving = {"ack_wait_s": 45.0, "settle_s": 45.0, "commit_s": 4.0, "after_return_s": 15.0}
    settings: dict[str, dict[str, str | int | float | bool]] = {
        "site": {"rights": rights},
        "guards": {"min_between_moves_s": 0.0, "preempt": True},
        "slurm": {"backend": "cli"},
        # A busy machine must not end a tick before its moves are through, nor come to the tick when
        # it is over that a launch failed.
        "moving": {**moving, **(SHORT if stalls else {})},
    }
    base = {MODEL: {kind: {1: speed} for kind, speed in SPEEDS.items()}}
    box = Sandbox.up(
        folder,
        LAYOUT,
        cred_expire_s=CRED_EXPIRE_S,
        options=SandboxOptions(mode="act", settings=settings, base_rates=base),
    )
    try:
        _fail_where_asked(box)
    except BaseException:
        box.down()
        raise
    return box


def fail_next_launch(box: Sandbox, job: str) -> None:
    """The next launch of a job fails on its node, which Slurm then drains."""
    _mark(box, job).touch()


def _mark(box: Sandbox, job: str) -> Path:
    return box.conf.parent / f"fails.{job}"


def _fail_where_asked(box: Sandbox) -> None:
    prolog = box.conf.parent / "prolog.sh"
    mark = _mark(box, "$SLURM_JOB_ID")
    prolog.write_text(f'#!/bin/sh\nif rm "{mark}" 2>/dev/null; then exit 1; fi\nexit 0\n')
    prolog.chmod(0o755)
    with box.conf.open("a") as conf:
        conf.write(f"Prolog={prolog}\n")
    box.run("scontrol", "reconfigure")


def take_the_feature(box: Sandbox) -> None:
    """The rare node loses the feature by which jobs are placed on it."""
    _features(box, "gone")


def repair_nodes(box: Sandbox) -> None:
    """The rare node has its feature again, and none is drained."""
    _features(box, RARE)
    undrain(box)


def undrain(box: Sandbox) -> None:
    """Resume the nodes that Slurm drained."""
    for node in _nodes(box, "drain"):
        box.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def all_free(box: Sandbox) -> bool:
    """Whether nothing runs on any node but the rare one, and Slurm has heard of each since it was
    resumed; before, a node counts as down."""
    return set(_nodes(box, "")) - set(_nodes(box, "idle")) <= {RARE_NODE} and not _nodes(box, "*")


def _nodes(box: Sandbox, state: str) -> list[str]:
    """Nodes in whose state this stands."""
    shown = box.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
    return sorted({line.split()[0] for line in shown if state in line.split()[1]})


def _features(box: Sandbox, name: str) -> None:
    words = [f"AvailableFeatures={name}", f"ActiveFeatures={name}"]
    box.run("scontrol", "update", f"NodeName={RARE_NODE}", *words)
