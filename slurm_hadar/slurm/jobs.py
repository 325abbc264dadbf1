"""Jobs from ``squeue --json`` of Slurm 22.05 to 26.05.

What differs between releases: numbers are plain in 22.05 and ``{set, infinite, number}`` later;
the state is a string in 22.05, a list later, and so is ``shared``; 22.05 shows no CPUs per task;
nodes of an allocation stand in ``job_resources.allocated_nodes`` in 22.05, in
``job_resources.nodes.allocation`` later; the newest form of 26.05 does not show which job wants
whole nodes.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import cast

from slurm_hadar import reading
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.domain.job import GpuRequest, Job, JobState
from slurm_hadar.slurm import hosts, states, tres
from slurm_hadar.slurm.array_tasks import tasks_of
from slurm_hadar.slurm.output import JsonListReader

Record = Mapping[str, object]

MOST_NAMED = 20_000_000
"""Nodes that all jobs may name together: a few bytes of a host list stand for thousands."""
MOST_ASKED = 2_000_000
"""Of these, what one user's jobs may name with ``-x`` and ``-w``."""

_PER = ("node", "job", "task", "socket")
"""Of what Slurm shows a request."""
_ODD = ("minimum_tmp_disk_per_node", "sockets_per_node", "cores_per_socket", "threads_per_core")
_UNSHARED = frozenset({"NONE", "USER", "MCS", "TOPO"})
"""Values of ``shared`` for jobs that keep others off their nodes; 22.05 calls the opposite
``shared``, later releases ``oversubscribe``."""


def json_option(version: tuple[int, int, int]) -> str:
    """What makes squeue print JSON that tells all that is read here.

    On 26.05.5 ``shared`` is empty for every job in that release's own form (v0.0.45) and right in
    those of the releases before it. How long Slurm will print these is not known.
    """
    return "--json=v0.0.44" if (26, 5) <= version[:2] < (27, 11) else "--json"


class JobsReader:
    """The jobs of one ``squeue --json``, read while it prints them.

    ``ids`` restricts them (None: all); see :meth:`Cluster.read_jobs` for both parameters. Both
    methods raise :class:`SlurmError`: :meth:`feed` where a record cannot be understood,
    :meth:`end` where the text is not whole.
    """

    def __init__(self, ids: Collection[str] | None, tasks_per_array: int) -> None:
        self._taken = _Taken(ids, tasks_per_array)
        self._members = JsonListReader("jobs", self._taken.take)

    def feed(self, text: str) -> None:
        """The next part of what squeue printed."""
        self._members.feed(text)

    def end(self) -> tuple[list[Job], list[str]]:
        """All jobs, and notes on what was cut."""
        try:
            document = self._members.end()
        except ValueError:
            raise SlurmError("squeue answered with broken JSON", retry=True) from None
        if document.get("jobs") != []:
            raise SlurmError("squeue answered with JSON that holds no list of jobs", retry=True)
        if document.get("errors"):
            raise _unanswered(document["errors"])
        return self._taken.jobs, self._taken.notes


class _Taken:
    """The records so far. Apart from what reads the text, which refers to :meth:`take`: in a circle
    all jobs of many ticks would stay until Python looks for such."""

    def __init__(self, ids: Collection[str] | None, tasks_per_array: int) -> None:
        self._ids, self._most = ids, tasks_per_array
        self.jobs: list[Job] = []
        self.notes: list[str] = []
        self._named = 0
        self._asked: Counter[int] = Counter()

    def take(self, record: object) -> None:
        """The next record."""
        if not isinstance(record, dict):
            raise SlurmError("squeue answered with a job that is no record", retry=True)
        try:
            found, notes = tasks_of(
                one(record), _text(record, "array_task_string"), self._ids, self._most
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            shown = reading.shown(repr(record.get("job_id", "without id")), 20)
            raise SlurmError(
                f"squeue shows job {shown} in a form that is not understood ({error!r:.80})"
            ) from None
        if found:
            found = self._counted(found)
        self.jobs += found
        self.notes += notes

    def _counted(self, found: list[Job]) -> list[Job]:
        """These records of one job; without the nodes that it asks for, and unmanaged, where its
        user's jobs name too many: no other user's jobs are to wait for that."""
        job = found[0]
        names = len(job.required_nodes) + len(job.excluded_nodes)
        self._named += len(job.nodes)
        if self._asked[job.uid] + names <= MOST_ASKED:
            self._asked[job.uid] += names
            self._named += names
        else:
            wrong = f"the user's jobs name more than {MOST_ASKED} nodes with -x and -w, the limit"
            bare = replace(
                job,
                required_nodes=(),
                excluded_nodes=(),
                declaration=None,
                declaration_error=wrong,
            )
            found = [replace(bare, id=task.id) for task in found]
        if self._named > MOST_NAMED:
            raise SlurmError(
                f"squeue names more than {MOST_NAMED} nodes over all jobs, the limit; what is "
                "asked for with -x and -w counts too"
            )
        return found


def parse(
    text: str, ids: Collection[str] | None, tasks_per_array: int
) -> tuple[list[Job], list[str]]:
    """The jobs of a whole ``squeue --json``; see :class:`JobsReader`."""
    reader = JobsReader(ids, tasks_per_array)
    reader.feed(text)
    return reader.end()


def _unanswered(errors: object) -> SlurmError:
    """22.05 ends with status 0 and an empty list when slurmctld cannot be reached."""
    entries = errors if isinstance(errors, list) else [errors]
    said = [
        " ".join(str(entry.get(key, "")) for key in ("source", "description", "error"))
        for entry in entries
        if isinstance(entry, dict)
    ]
    return SlurmError(
        f"squeue: {'; '.join(said)[:300] or 'an error without a message'}; "
        "slurmctld may be down or busy",
        retry=True,
    )


def one(record: Record) -> Job:
    """One record; a waiting array that Slurm has not split stays one Job here."""
    raw_id = _whole(record, "job_id")
    array, task = _whole(record, "array_job_id"), _number(record, "array_task_id")
    het, offset = _whole(record, "het_job_id"), _whole(record, "het_job_offset")
    job_id = f"{array}_{int(task)}" if array and task is not None else str(raw_id)
    names = _names(record.get("job_state"))
    state = states.job_state(names)
    priority, reason = _whole(record, "priority"), _reason(record)
    nodes = hosts.expand(_text(record, "nodes")) if state is not JobState.PENDING else ()
    limit = _number(record, "time_limit")
    comment = _text(record, "comment")
    declared, wrong = declared_in(comment)
    other_gres = any(tres.others(_text(record, f"tres_per_{what}")) for what in _PER)
    per_job = tres.parse_gpus(_text(record, "tres_per_job"))
    count = max(1, _whole(record, "node_count"))
    if per_job and state is JobState.PENDING:
        count = least_nodes(_text(record, "tres_req_str"), count)
    return Job(
        id=f"{het}+{offset}" if het else job_id,
        raw_id=raw_id,
        uid=_whole(record, "user_id"),
        user=_text(record, "user_name"),
        name=_text(record, "name"),
        state=state,
        slurm_state="+".join(names),
        reason="" if reason == "None" else reason,
        account=_text(record, "account"),
        qos=_text(record, "qos"),
        partitions=_words(record, "partition"),
        priority=priority,
        nice=_nice(record),
        held=states.held(state, priority, reason),
        submit_s=_seconds(record, "submit_time"),
        eligible_s=_seconds(record, "eligible_time"),
        accrue_s=_seconds(record, "accrue_time"),
        start_s=_seconds(record, "start_time"),
        end_s=_seconds(record, "end_time"),
        time_limit_s=inf if limit is None else limit * 60.0,
        least_limit_s=_whole(record, "time_minimum") * 60.0,
        deadline_s=_seconds(record, "deadline"),
        nodes=nodes,
        gpus=_allocated(record, nodes, state),
        request=GpuRequest(
            per_node=tres.parse_gpus(_text(record, "tres_per_node")),
            per_job=per_job,
            per_task=tres.parse_gpus(_text(record, "tres_per_task")),
        ),
        features=_text(record, "features"),
        required_nodes=hosts.expand(_text(record, "required_nodes")),
        excluded_nodes=hosts.expand(_text(record, "excluded_nodes")),
        node_count=count,
        tasks=max(1, _whole(record, "tasks")),
        cpus=max(1, _whole(record, "cpus")),
        cpus_per_task=_cpus_per_task(record),
        mem_per_cpu_mb=_whole(record, "memory_per_cpu"),
        mem_per_node_mb=_whole(record, "memory_per_node"),
        per_gpu=bool(_text(record, "cpus_per_tres") or _text(record, "memory_per_tres")),
        least_cpus=_whole(record, "minimum_cpus_per_node"),
        odd=any(_whole(record, key) for key in _ODD)
        or bool(_text(record, "tres_per_socket"))
        or other_gres,
        # 22.05 shows false once a launch failed on a dead node; only batch jobs are ever requeued.
        batch=bool(record.get("batch_flag")) or _whole(record, "restart_cnt") > 0,
        requeue=bool(record.get("requeue")),
        external=bool(_text(record, "licenses") or _text(record, "burst_buffer"))
        # 25.05 and later.
        or _whole(record, "segment_size") > 0,
        other_gres=other_gres,
        expedited="EXPEDITED_REQUEUE" in _names(record.get("flags")),
        exclusive=bool(_UNSHARED & set(_names(record.get("shared")))),
        whole_nodes="NONE" in _names(record.get("shared")),
        restarts=_whole(record, "restart_cnt"),
        exit_code=_exit_code(record),
        het=het > 0,
        array_job_id=array,
        reservation=_text(record, "resv_name"),
        dependency=_text(record, "dependency"),
        comment=comment,
        admin_comment=_text(record, "admin_comment"),
        workdir=_text(record, "current_working_directory"),
        declaration=declared,
        declaration_error=wrong,
    )


def declared_in(comment: str) -> tuple[Declaration | None, str]:
    """The declaration in a Comment, or why it cannot be read."""
    try:
        return declaration.decode(comment), ""
    except UsageError as error:
        return None, str(error)


def least_nodes(requested: str, shown: int) -> int:
    """The nodes that a waiting job asks for, from its requested TRES such as ``cpu=1,node=2``.

    What Slurm shows as the number of nodes of a job with ``--gpus`` is a guess of its own, and
    changes with updates that have nothing to do with it.
    """
    match = re.search(r"(?:^|,)node=(\d{1,9})(?:,|$)", requested)
    return max(1, int(match[1])) if match else shown


def _allocated(
    record: Record, nodes: tuple[str, ...], state: JobState
) -> dict[str, dict[str, int]]:
    """GPUs by node. ``gres_detail`` stands in the order of the allocation's nodes."""
    if state in (JobState.PENDING, JobState.FINISHED):
        return {}
    details = [str(text) for text in cast(list[object], record.get("gres_detail") or [])]
    names = _allocation(record)
    if len(names) != len(details):
        names = nodes
    if details and len(names) != len(details):
        raise SlurmError(
            f"job {record.get('job_id')}: GPUs of {len(details)} nodes on {len(names)} nodes",
            retry=True,
        )
    by_node = {
        name: tres.parse_gpus(text) for name, text in zip(names, details, strict=False) if text
    }
    return {name: gpus for name, gpus in by_node.items() if gpus}


def _allocation(record: Record) -> tuple[str, ...]:
    resources = record.get("job_resources")
    if not isinstance(resources, dict):
        return ()
    entries, key = resources.get("allocated_nodes"), "nodename"
    if entries is None and isinstance(resources.get("nodes"), dict):
        entries, key = resources["nodes"].get("allocation"), "name"
    return tuple(str(entry[key]) for entry in entries or ())


def _cpus_per_task(record: Record) -> int:
    """22.05 shows none: there it is the requested CPUs over the tasks."""
    shown = _whole(record, "cpus_per_task")
    match = re.search(r"(?:^|,)cpu=(\d{1,9})(?:,|$)", _text(record, "tres_req_str"))
    requested = int(match[1]) if match else 1
    return shown or max(1, requested // max(1, _whole(record, "tasks")))


def _number(record: Record, key: str) -> float | None:
    """The value, None where it is not set or infinite."""
    value = record.get(key)
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{key} is not a number")
    return value


def _exit_code(record: Record) -> int:
    """22.05 shows the status as of wait(2)."""
    value = record.get("exit_code")
    if isinstance(value, dict):
        return _whole(value, "return_code")
    status = _whole(record, "exit_code")
    return status >> 8 if status & 0x7F == 0 else 0


def _whole(record: Record, key: str) -> int:
    return int(_number(record, key) or 0)


def _nice(record: Record) -> int:
    """22.05 shows one below 0 as an unsigned number of 32 bits."""
    shown = _whole(record, "nice")
    return shown - (1 << 32) if shown >= 1 << 31 else shown


def _seconds(record: Record, key: str) -> float:
    return float(_number(record, key) or 0)


def _reason(record: Record) -> str:
    """Why it waits. That a launch failed stands in the description alone: the reason beside it
    is JobHeldUser, as if its owner had held it (seen on 22.05.8)."""
    described = _text(record, "state_description")
    failed = "launch failed" in described.lower().replace("_", " ")
    return described if failed else _text(record, "state_reason")


def _text(record: Record, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        return ""
    # Half a pair of surrogates is in JSON, but can be neither printed nor kept.
    return value if value.isascii() else value.encode(errors="replace").decode()


def _words(record: Record, key: str) -> tuple[str, ...]:
    return tuple(word for word in _text(record, key).split(",") if word)


def _names(value: object) -> list[str]:
    if isinstance(value, str):
        return [value.upper()] if value else []
    return [str(name).upper() for name in value] if isinstance(value, list) else []
