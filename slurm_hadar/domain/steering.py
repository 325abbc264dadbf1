"""What we did to a job, as it travels in the job's AdminComment.

It holds what is needed to see whether a plan is already carried out, and to take it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.domain import comment_segment

_SEGMENT = "hadarplan"


@dataclass(frozen=True, slots=True)
class Steering:
    """Our last decision on one job.

    ``gpus`` is where a job was moved to, by type; empty of one that was given hints only. ``nodes``
    is the policy's expectation; Slurm may choose others of the type. ``time`` is when it was
    decided, s since the epoch. ``was`` keeps the fields of the request as the user submitted them,
    by scontrol's names; ``wrote`` what we wrote there last, and ``foreign`` names the fields that
    another user changed since: they stay as they are. ``listed`` is the list of partitions that the
    job's owner wrote then, as it was last seen to wait. ``unsure`` is what a field had before an
    update that Slurm may or may not have taken. ``leased``: an earlier release made it wait
    for a begin time. ``until``: its list of partitions is shorter than it may be, and waits for the
    first of them up to this time; ``ends``: when it was then expected to end there; both s since
    the epoch, 0 of a list that makes it wait for nothing. ``age_lost``: ``time`` was an update of
    its partitions that has taken its age from its priority.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    time: float = 0.0
    leased: bool = False
    moves: int = 0
    was: Mapping[str, str] = field(default_factory=dict)
    batch: int = 0
    wrote: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    unsure: Mapping[str, str] = field(default_factory=dict)
    until: float = 0.0
    ends: float = 0.0
    age_lost: bool = False
    listed: tuple[str, ...] = ()

    @property
    def fixed(self) -> tuple[str, ...]:
        """Those of ``foreign`` that no move changes. A running job moves among the partitions of a
        list that its owner wrote."""
        moves = len(self.listed) > 1
        return tuple(key for key in self.foreign if not (moves and key == "Partition"))


def decode(admin_comment: str) -> Steering | None:
    """Our part of an AdminComment; None where there is none or it is damaged."""
    words = comment_segment.decode(_SEGMENT, admin_comment)
    if words is None:
        return None
    try:
        return Steering(
            gpus=_counts(words.get("on", "")),
            nodes={
                node: _counts(gpus)
                for node, _, gpus in (
                    part.partition("/") for part in _parts(words.get("at", ""), "+")
                )
            },
            time=float(words.get("t", "0")),
            leased=words.get("lease") == "1",
            moves=int(words.get("moves", "0")),
            batch=int(words.get("batch", "0")),
            was={key[4:]: value for key, value in words.items() if key.startswith("was.")},
            wrote={key[4:]: value for key, value in words.items() if key.startswith("set.")},
            unsure={key[4:]: value for key, value in words.items() if key.startswith("old.")},
            foreign=tuple(_parts(words.get("not", ""), ",")),
            until=float(words.get("until", "0")),
            ends=float(words.get("ends", "0")),
            age_lost=words.get("age") == "lost",
            listed=tuple(_parts(words.get("list", ""), ",")),
        )
    except ValueError:
        return None


def merge(admin_comment: str, steering: Steering) -> str:
    """An AdminComment with our part replaced and all else kept."""
    words = {"t": f"{steering.time:.0f}"}
    if steering.gpus:
        words["on"] = _text(steering.gpus)
    if steering.nodes and len(steering.nodes) <= 8:
        words["at"] = "+".join(f"{node}/{_text(gpus)}" for node, gpus in steering.nodes.items())
    if steering.leased:
        words["lease"] = "1"
    if steering.moves:
        words["moves"] = str(steering.moves)
    if steering.batch:
        words["batch"] = str(steering.batch)
    if steering.until:
        words |= {"until": f"{steering.until:.0f}", "ends": f"{steering.ends:.0f}"}
    if steering.age_lost:
        words["age"] = "lost"
    if steering.foreign:
        words["not"] = ",".join(steering.foreign)
    if steering.listed:
        words["list"] = ",".join(steering.listed)
    words |= {f"was.{key}": value for key, value in steering.was.items()}
    words |= {f"set.{key}": value for key, value in steering.wrote.items()}
    words |= {f"old.{key}": value for key, value in steering.unsure.items()}
    return comment_segment.merge(_SEGMENT, admin_comment, words, separator=";")


def owners_word(field: str) -> str:
    """What stands in each text of :func:`merge` that keeps the owner's value of this field."""
    return f"was.{field}="


def _parts(text: str, separator: str) -> list[str]:
    return text.split(separator) if text else []


def _counts(text: str) -> dict[str, int]:
    return {
        gpu_type: int(count)
        for gpu_type, _, count in (part.partition(":") for part in _parts(text, ","))
    }


def _text(gpus: Mapping[str, int]) -> str:
    return ",".join(f"{gpu_type}:{count}" for gpu_type, count in sorted(gpus.items()))
