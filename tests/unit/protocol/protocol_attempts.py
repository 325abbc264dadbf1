"""What the processes of the job do: take over, load, train, save, answer, leave."""

from collections.abc import Iterator

from protocol_world import (
    COMPLETING,
    ENDED,
    PENDING,
    RUNNING,
    SAME_SECOND,
    SETTLED,
    Bounds,
    Process,
    Progress,
    SlurmJob,
    World,
)

from slurm_hadar.exchange.plan_file import JobPlan
from slurm_hadar.runtime.attempts import Superseded

Step = tuple[str, World]
GONE = Process(at="gone")
_JOB = "1"
_MERGED = ("load", "list", "mkdir", "check", "remove", "recheck", "reload",
           "write", "copy", "previous", "newest")  # fmt: skip


def attempt_steps(world: World, bounds: Bounds) -> Iterator[Step]:
    """Every step that a process of the job can take."""
    for index, process in enumerate(world.processes):
        if process.at == "gone":
            continue
        for label, after in _steps(world, bounds, index, process):
            text = label
            while bounds.whole_saves and after.processes[index].at in _MERGED:
                _, after = next(_steps(after, bounds, index, after.processes[index]))
            yield f"attempt {index}: {text}", after


def put(world: World, index: int, process: Process) -> World:
    """The world with one process replaced."""
    found = world.processes
    return world._replace(processes=(*found[:index], process, *found[index + 1 :]))


def exits(world: World, index: int, end: str) -> World:
    """The process ends; Slurm notes it where it takes it for the job's present one."""
    world = put(world, index, GONE)
    job = world.job
    if index != job.restarts:
        return world
    if job.state == RUNNING:
        world = world._replace(job=job._replace(state=ENDED, on="", end=end))
        if end != "COMPLETED":
            return world._replace(broken=f"job lost: its present attempt ended as {end}")
    elif job.state == COMPLETING:
        world = world._replace(job=requeued(job))
    return world


def requeued(job: SlurmJob) -> SlurmJob:
    """The job waits for its next start, which Slurm puts cred_expire ahead."""
    return job._replace(
        state=PENDING, restarts=job.restarts + 1, on="", age=SAME_SECOND, begin=SETTLED, held=False
    )


def _steps(world: World, bounds: Bounds, index: int, process: Process) -> Iterator[Step]:
    """Each step reads or changes one file, or none."""
    parts = bounds.parts
    match process.at:
        case "load":
            stamp = world.newest, world.previous
            yield "loads the checkpoint", put(world, index, process._replace(
                at="list", lineage=world.newest, saved=len(world.newest), stamp=stamp))  # fmt: skip
        case "list":
            try:
                token = f"{index:016x}"
                identity = parts.next_attempt(_JOB, index, world.folders, token)
            except Superseded:
                yield "finds a later attempt and leaves", exits(world, index, "SUPERSEDED")
                return
            yield (
                "lists the attempts",
                put(world, index, process._replace(at="mkdir", identity=identity)),
            )
        case "mkdir":
            after = world._replace(folders=world.folders | {process.identity})
            yield "makes its folder", put(after, index, process._replace(at="check"))
        case "check" | "recheck":
            if parts.later(process.identity, world.folders) is not None:
                after = world._replace(folders=world.folders - {process.identity})
                yield "finds a later attempt and leaves", exits(after, index, "SUPERSEDED")
                return
            then = process._replace(at="reload", listed=frozenset())
            if process.at == "check":
                # As the product: it lists once, and then removes one after the other.
                older = frozenset(filter(parts.supersedes(process.identity), world.folders))
                then = process._replace(at="remove" if older else "recheck", listed=older)
            yield "looks for later attempts", put(world, index, then)
        case "remove":
            gone = min(process.listed)
            rest = process.listed - {gone}
            after = world
            if parts.removes_earlier:
                after = world._replace(folders=world.folders - {gone})
            yield (
                f"removes the folder of attempt {gone.restarts}",
                put(
                    after, index, process._replace(at="remove" if rest else "recheck", listed=rest)
                ),
            )
        case "reload":
            lineage = process.lineage
            if process.stamp != (world.newest, world.previous) and parts.reloads:
                lineage = world.newest
            yield (
                "has taken over",
                _taken_over(
                    world,
                    index,
                    process._replace(
                        at="train", lineage=lineage, saved=len(lineage), stamp=((), ())
                    ),
                ),
            )
        case "train":
            yield from _trains(world, bounds, index, process)
        case "write":
            if _may_write(world, bounds, process):
                at = "copy" if world.newest else "newest"
                yield (
                    "writes a checkpoint in its folder",
                    put(world, index, process._replace(at=at)),
                )
            else:
                yield "cannot write: superseded", exits(world, index, "SUPERSEDED")
        case "copy":
            if _may_write(world, bounds, process):
                yield (
                    "gives the newest checkpoint a second name",
                    put(world, index, process._replace(at="previous", kept=world.newest)),
                )
            else:
                yield "cannot copy: superseded", exits(world, index, "SUPERSEDED")
        case "previous":
            if _may_write(world, bounds, process):
                after = _published(world._replace(previous=process.kept), index, process)
                yield (
                    "renames the copy to PATH.previous",
                    put(after, index, process._replace(at="newest", kept=())),
                )
            else:
                yield "cannot rename: superseded", exits(world, index, "SUPERSEDED")
        case "newest":
            if _may_write(world, bounds, process):
                after = _published(world, index, process)
                after = after._replace(newest=process.lineage)
                yield "renames its checkpoint to PATH", put(
                    after, index, process._replace(at=_after_save(process),
                                                   saved=len(process.lineage), why=""
                ))  # fmt: skip
            else:
                yield "cannot rename: superseded", exits(world, index, "SUPERSEDED")
        case "answer" | "pause":
            yield from _answers(world, bounds, index, process)
        case "tell":
            after = world._replace(progress=Progress(index, process.ack))
            yield (
                "acknowledges in its progress file",
                put(after, index, process._replace(at="pause")),
            )
        case "leave":
            yield "leaves on TERM", exits(world, index, "LEFT")
        case "finish":
            yield "has done all work and ends", exits(world, index, "COMPLETED")
    if process.term:
        yield "is killed", exits(world, index, "KILLED")


def _trains(world: World, bounds: Bounds, index: int, process: Process) -> Iterator[Step]:
    done = len(process.lineage)
    if process.term:
        yield "sees TERM and saves", put(world, index, _save(process, "term"))
    if done == bounds.work:
        yield "has trained all and saves", put(world, index, _save(process, "end"))
    else:
        trained = process._replace(lineage=(*process.lineage, index))
        yield "trains one unit", put(world, index, trained)
        if process.saved != done:
            yield "saves because it is time", put(world, index, _save(process, "due"))
    nonce = _wish(world, bounds, index, process)
    if nonce:
        asked = put(world, index, _save(process, "asked"))
        yield "reads the wish to save", _obeyed(asked, index, nonce)
    mine = Progress(index, process.ack)
    if world.progress != mine and bounds.hosts:
        yield "writes its progress file", world._replace(progress=mine)


def _answers(world: World, bounds: Bounds, index: int, process: Process) -> Iterator[Step]:
    """It has saved as it was asked: acknowledge, then wait a little for the move."""
    if process.term:
        yield "sees TERM and leaves", put(world, index, process._replace(at="leave"))
    nonce = _wish(world, bounds, index, process)
    if nonce and bounds.parts.habit == "signal":
        # Or it only saves: nobody can tell what a script does.
        heard = process._replace(answered=process.answered | {nonce})
        yield "goes on after its save", put(world, index, heard._replace(at="train"))
        if world.job.state == RUNNING and index == world.job.restarts:
            job = world.job._replace(state=COMPLETING, by_us=False)
            leaves = heard._replace(at="leave", term=True)
            yield "requeues itself", put(world._replace(job=job), index, leaves)
    elif nonce:
        answered = process.answered | {nonce}
        yield (
            "reads the wish to acknowledge",
            _obeyed(
                put(world, index, process._replace(at="tell", ack=nonce, answered=answered)),
                index,
                nonce,
            ),
        )
    else:
        yield "was not moved and goes on", put(world, index, process._replace(at="train"))


def _wish(world: World, bounds: Bounds, index: int, process: Process) -> str:
    plan = world.plan
    if plan is None or not plan.save:
        return ""
    read = JobPlan(_JOB, 0.0, save=plan.save, restarts=plan.restarts)
    return bounds.parts.save_wish(read, index, process.answered)


def _obeyed(world: World, index: int, nonce: str) -> World:
    """A nonce ends with the restart count of the attempt that it was meant for."""
    if nonce.endswith(f"r{index}"):
        return world
    return world._replace(broken="an attempt follows a wish to save that was meant for another")


def _save(process: Process, why: str) -> Process:
    process = process._replace(why=why)
    if process.saved == len(process.lineage):
        return process._replace(at=_after_save(process), why="")
    return process._replace(at="write")


def _after_save(process: Process) -> str:
    return {"due": "train", "asked": "answer", "term": "leave", "end": "finish"}[process.why]


def _may_write(world: World, bounds: Bounds, process: Process) -> bool:
    if bounds.parts.renames_from_folder or process.at == "write":
        return process.identity in world.folders
    # Planted: it looked once, before it wrote; the rename itself depends on nothing.
    return True


def _taken_over(world: World, index: int, process: Process) -> World:
    after = put(world, index, process)
    if process.lineage != world.newest:
        return after._replace(broken="an attempt took over without the newest checkpoint")
    return after._replace(owner=max(world.owner, index))


def _published(world: World, index: int, process: Process) -> World:
    if index < world.owner:
        return world._replace(broken="a stale attempt published after a later one had taken over")
    if process.lineage[: len(world.newest)] != world.newest:
        return world._replace(broken="a checkpoint does not go on from the one before it")
    return world
