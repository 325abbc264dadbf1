"""Slurm through its commands: scontrol, squeue, sbatch, scancel."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Node, Partition, Reservation
from slurm_hadar.slurm import (
    jobs,
    limits,
    minutes,
    records,
    updates,
    waiting_priorities,
)
from slurm_hadar.slurm.commands import (
    Commands,
    TimedOut,
    checked_id,
    checked_ids,
    checked_signal,
    failure,
)
from slurm_hadar.slurm.interface import TASKS_PER_ARRAY, Target, Update
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.minutes import Minutes
from slurm_hadar.slurm.traffic import Traffic
from slurm_hadar.slurm.waiting_priorities import CountedPriority

_LINES_AT_ONCE = 200
"""Updates per scontrol: at some 500 a second, and far fewer where slurmctld is busy, they end well
within the time limit."""
_AT_ONCE = 4
"""Commands side by side where each update needs its own."""
_IDS_AT_ONCE = 200
"""Ids that a read hands to squeue; with more it reads all jobs and picks."""
_USERS_AT_ONCE = 200
"""Users whose associations are asked for by name; with more all are shown."""
_USER = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)

_BEFORE_REPEATING_S = 3.0
"""scancel repeats a signal 5 s after the first."""

_TARGETS: dict[Target, tuple[str, ...]] = {
    "steps": (),
    "batch": ("--batch",),
    "full": ("--full",),
}


class CommandsCluster:
    """The command-line back end of :class:`~slurm_hadar.slurm.cluster.Cluster`."""

    backend = "commands"

    def __init__(self, commands: Commands, why: str = "") -> None:
        self.commands = commands
        self.why = why
        self.traffic = Traffic()
        self.queries: Counter[str] = self.traffic.queries
        self.notes: list[str] = []
        self._version: tuple[int, int, int] | None = None

    @property
    def slurm_version(self) -> tuple[int, int, int]:
        """Version of the commands, which is that of the site's Slurm or close to it."""
        if self._version is None:
            text = self.commands.read("scontrol", ["--version"])
            match = re.search(r"\b(\d{1,4})\.(\d{1,4})\.(\d{1,4})", text, re.ASCII)
            if match is None:
                raise SlurmError(f"scontrol --version says {text[:60]!r}, which is no version")
            self._version = (int(match[1]), int(match[2]), int(match[3]))
        return self._version

    def ping(self) -> bool:
        """Whether a slurmctld answers."""
        try:
            with self.traffic.request("ping"):
                return " is UP" in self.commands.run("scontrol", ["ping"]).out
        except SlurmError:
            return False

    def read_jobs(
        self, ids: Iterable[str] | None = None, tasks_per_array: int = TASKS_PER_ARRAY
    ) -> list[Job]:
        """One ``squeue --json``. 22.05 ignores its filters there, so the ids are picked here."""
        self.notes = []
        wanted = None if ids is None else dict.fromkeys(checked_ids(ids))
        if wanted is not None and not wanted:
            return []
        arguments = [jobs.json_option(self.slurm_version), "--all", "--states=all"]
        if wanted is not None and len(wanted) <= _IDS_AT_ONCE:
            arguments.append("--jobs=" + ",".join(wanted))
        reader = jobs.JobsReader(wanted, tasks_per_array)
        with self.traffic.request("jobs"):
            answer = self.commands.stream("squeue", arguments, reader.feed)
            if answer.code != 0:
                if wanted is not None and "Invalid job id specified" in answer.err:
                    return []
                raise failure("squeue", answer)
            found, self.notes = reader.end()
            return found

    def read_nodes(self) -> list[Node]:
        """One ``scontrol show node``."""
        return records.nodes(self._show("nodes", "-d", "show", "node"))

    def read_partitions(self) -> list[Partition]:
        """One ``scontrol show partition``."""
        return records.partitions(self._show("partitions", "show", "partition"))

    def read_reservations(self) -> list[Reservation]:
        """One ``scontrol show reservation``."""
        return records.reservations(self._show("reservations", "show", "reservation"))

    def read_topology(self) -> dict[str, str]:
        """One ``scontrol show topology``."""
        return records.racks(self._show("topology", "show", "topology"))

    def read_config(self) -> dict[str, str]:
        """One ``scontrol show config``."""
        return records.settings(self._show("config", "show", "config"))

    def admin_level(self, user: str) -> str:
        """One ``sacctmgr show user``."""
        columns = ["-n", "-P", "show", "user", f"name={user}", "format=User,AdminLevel"]
        with self.traffic.request("users"):
            text = self.commands.read("sacctmgr", columns)
        for line in text.splitlines():
            name, _, level = line.strip().partition("|")
            if name == user:
                return level
        return ""

    def read_mail_types(self, numbers: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """One ``scontrol``, with a ``show job`` for each on its standard input."""
        text = "".join(f"show job {number}\n" for number in numbers)
        with self.traffic.request("mails"):
            # Its status is that of the last command, and a job may have ended.
            answer = self.commands.run("scontrol", ["-o"], text=text)
            return records.mail_types(answer.out)

    def read_limits(self, cluster: str) -> AccountLimits:
        """One ``sacctmgr show assoc`` and one ``sacctmgr show qos``."""
        show = ["-n", "-P", "show"]
        of_cluster = ["assoc", f"cluster={cluster}", "format=" + ",".join(limits.ASSOCIATIONS)]
        with self.traffic.request("limits"):
            associations = self.commands.read("sacctmgr", [*show, *of_cluster])
            qos = self.commands.read("sacctmgr", [*show, "qos", "format=" + ",".join(limits.QOS)])
            return limits.parse(associations, qos)

    def read_minutes(self, users: Iterable[str]) -> Minutes:
        """One ``scontrol show assoc_mgr``; accounts are shown in any case."""
        show = ["-o", "show", "assoc_mgr", "flags=assoc,qos"]
        named = sorted(set(users))
        if 0 < len(named) <= _USERS_AT_ONCE and all(map(_USER.fullmatch, named)):
            show.append("users=" + ",".join(named))
        with self.traffic.request("minutes"):
            return minutes.parse(self.commands.read("scontrol", show))

    def read_use(self) -> dict[int, dict[str, float]]:
        """One ``squeue``."""
        with self.traffic.request("minutes"):
            return minutes.parse_use(self.commands.read("squeue", minutes.USE))

    def read_priorities(self) -> dict[int, list[CountedPriority]]:
        """One ``sprio``."""
        with self.traffic.request("priorities"):
            return waiting_priorities.parse(self.commands.read("sprio", waiting_priorities.SHOWN))

    def submit(
        self,
        script: str | Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> str:
        """One ``sbatch --parsable``."""
        arguments = ["--parsable", *options]
        text = script if isinstance(script, str) else ""
        if isinstance(script, Path):
            arguments.append(str(script.absolute()))
        elif not script.startswith("#!"):
            raise UsageError("a batch script starts with #!, such as #!/bin/bash")
        with self.traffic.request("submit"):
            answer = self.commands.run("sbatch", arguments, text=text, env=env)
            if answer.code != 0:
                raise failure("sbatch", answer)
        for line in reversed(answer.out.splitlines()):
            match = re.fullmatch(r"(\d+)(;\S+)?", line.strip(), re.ASCII)
            if match:
                return match[1]
        raise SlurmError(f"sbatch gave no job id but {answer.out[:80]!r}")

    def apply(self, many: Sequence[Update]) -> list[SlurmError | None]:
        """Updates that fit there go through one scontrol's standard input, the others one by one.

        What scontrol did not take silently is tried once more by itself: its exit status then
        tells. Updates of one job in one call are carried out in their order.
        """
        answers: list[SlurmError | None] = [None] * len(many)
        lines: dict[int, list[str]] = {}
        for index, update in enumerate(many):
            try:
                lines[index] = ["update", *updates.update_arguments(update, self.slurm_version)]
            except SlurmError as error:
                answers[index] = error
        ids = [many[index].job_id for index in lines]
        if len(set(ids)) < len(ids):
            for index, line in lines.items():
                answers[index] = self._patiently("update", line)
            return answers
        self._many("update", lines, answers)
        return answers

    def requeue(self, ids: Sequence[str]) -> list[SlurmError | None]:
        """``scontrol requeue Incomplete`` through one standard input.

        A plain requeue would run a job anew that has ended, or was cancelled, a moment ago.
        """
        lines = {i: ["requeue", "Incomplete", id_] for i, id_ in enumerate(checked_ids(ids))}
        answers: list[SlurmError | None] = [None] * len(lines)
        self._many("requeue", lines, answers)
        return answers

    def reserve(self, name: str, nodes: Sequence[str], seconds: float) -> None:
        """One ``scontrol create reservation``."""
        # For root: with limits enforced Slurm wants a user whom the accounting database knows.
        words = [f"ReservationName={name}", f"Nodes={','.join(nodes)}", "Users=root"]
        times = ["StartTime=now", f"EndTime=now+{seconds:.0f}", "Flags=IGNORE_JOBS,OVERLAP"]
        self._one("reserve", ["create", "reservation", *words, *times])

    def unreserve(self, name: str) -> None:
        """One ``scontrol delete``."""
        self._one("reserve", ["delete", f"ReservationName={name}"])

    def requeue_ended(self, job_id: str, stays_held: bool = False) -> None:
        """One ``scontrol requeue`` or ``requeuehold``, once: later it may not be right any more."""
        word = "requeuehold" if stays_held else "requeue"
        with self.traffic.request("requeue"):
            answer = self.commands.run("scontrol", [word, checked_id(job_id)])
            if answer.code != 0:
                raise failure(f"scontrol {word}", answer)

    def hold(self, job_id: str) -> None:
        """One ``scontrol hold``."""
        self._one("hold", ["hold", checked_id(job_id)])

    def release(self, job_id: str) -> None:
        """One ``scontrol release``."""
        self._one("release", ["release", checked_id(job_id)])

    def signal(self, job_id: str, name: str, target: Target = "full") -> None:
        """One ``scancel --signal``.

        For a task of an array whose other tasks wait, slurmctld sends the signal on and still
        answers "transitional state"; scancel then repeats it every few seconds without end
        (22.05.8, and 24.11.5 without ``--ctld``). Such a scancel is ended before it repeats.
        """
        argv = [f"--signal={checked_signal(name)}", *_TARGETS[target], checked_id(job_id)]
        if "_" not in job_id:
            self._one("signal", argv, "scancel")
            return
        limit = min(_BEFORE_REPEATING_S, self.commands.timeout_s)
        with self.traffic.request("signal", measured=False):
            try:
                answer = self.commands.run("scancel", ["-v", "--ctld", *argv], timeout_s=limit)
            except TimedOut as late:
                if "transitional state" not in late.err:
                    raise
                return
            if answer.code != 0:
                raise failure("scancel signal", answer)

    def cancel(self, ids: Sequence[str]) -> list[SlurmError | None]:
        """``scancel`` of all; one by one where that fails. It is silent about unknown ids."""
        checked = checked_ids(ids)
        if not checked:
            return []
        with self.traffic.request("cancel"):
            answer = self.commands.run("scancel", checked)
        if answer.code == 0:
            return [None] * len(checked)
        return [self._patiently("cancel", [job_id], "scancel") for job_id in checked]

    def _show(self, kind: str, *arguments: str) -> str:
        with self.traffic.request(kind):
            text = self.commands.read("scontrol", ["-a", "-o", *arguments])
            # A flat topology is shown as nothing at all.
            return text if kind == "topology" else records.checked_whole(text, kind)

    def _many(
        self, kind: str, lines: Mapping[int, list[str]], answers: list[SlurmError | None]
    ) -> None:
        plain = [index for index, line in lines.items() if updates.plain(line)]
        alone = [index for index in lines if index not in set(plain)]
        if len(plain) == 1:
            plain, alone = [], list(lines)
        for start in range(0, len(plain), _LINES_AT_ONCE):
            chosen = plain[start : start + _LINES_AT_ONCE]
            try:
                alone += self._feed(kind, chosen, lines)
            except SlurmError as error:
                # Some of them may have been carried out: what Slurm shows next tells.
                for index in chosen:
                    answers[index] = error
        if not alone:
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(lambda index: self._patiently(kind, lines[index]), alone)
            for index, answer in zip(alone, found, strict=True):
                answers[index] = answer

    def _feed(self, kind: str, chosen: list[int], lines: Mapping[int, list[str]]) -> list[int]:
        """Through one scontrol; the ones that it did not take silently are returned."""
        text = updates.stdin_text([" ".join(lines[index]) for index in chosen])
        with self.traffic.request(kind, measured=False):
            answer = self.commands.run("scontrol", [], text=text)
        accepted = updates.which_accepted(answer.err, len(chosen))
        return [index for index, taken in zip(chosen, accepted, strict=True) if not taken]

    def _one(self, kind: str, argv: list[str], command: str = "scontrol") -> None:
        error = self._patiently(kind, argv, command)
        if error is not None:
            raise error

    def _patiently(
        self,
        kind: str,
        argv: list[str],
        command: str = "scontrol",
        sleep: Callable[[float], None] = time.sleep,
    ) -> SlurmError | None:
        def attempt() -> SlurmError | None:
            try:
                with self.traffic.request(kind):
                    answer = self.commands.run(command, argv)
                    if answer.code != 0:
                        raise failure(f"{command} {kind}", answer)
            except SlurmError as error:
                return error
            return None

        return updates.patiently(attempt, sleep)
