"""What Slurm does by itself, and what it does when it is asked."""

from collections.abc import Iterator

from protocol_attempts import Step, put, requeued
from protocol_world import (
    COMPLETING,
    PENDING,
    RUNNING,
    SAME_SECOND,
    SETTLED,
    SETTLING,
    Bounds,
    Controller,
    Process,
    World,
)

DEFAULT_TYPE = "k80"
OK, REFUSED = "ok", "refused"


def slurm_steps(world: World, bounds: Bounds) -> Iterator[Step]:
    """Every step that Slurm, its nodes and its other users can take."""
    job, left = world.job, world.left
    if job.state == PENDING:
        if job.age < SETTLED and (job.age == SAME_SECOND or not acts_on_old_look(world)):
            yield (
                "slurm: time passes after the requeue",
                world._replace(job=job._replace(age=job.age + 1)),
            )
        if not job.held and job.age >= job.begin:
            yield _starts(world)
            if left.launches:
                # Slurm counts the launch as a start. No process is left that would need time.
                failed = requeued(job._replace(by_us=False))._replace(held=True, age=SETTLED)
                yield (
                    "slurm: a launch fails, the job is held",
                    world._replace(
                        job=failed,
                        processes=(*world.processes, Process(at="gone")),
                        left=left._replace(launches=left.launches - 1),
                    ),
                )
    if job.state in (RUNNING, COMPLETING):
        if left.silent and not _just_read_as_pending(world):
            yield (
                "slurm: the node is silent, the job is requeued, its process runs on",
                (
                    world._replace(
                        job=requeued(job._replace(by_us=False)),
                        left=left._replace(silent=left.silent - 1),
                    )
                ),
            )
        if left.requeues and job.state == RUNNING and not _just_read_as_pending(world):
            after = world._replace(left=left._replace(requeues=left.requeues - 1))
            yield "owner: requeues the job", _ends_attempt(after, by_us=False)
    for index, process in enumerate(world.processes[: job.restarts]):
        if process.at != "gone":
            # slurmd answers again and ends what is left of the earlier attempt.
            yield f"slurm: kills the stale attempt {index}", put(world, index, Process(at="gone"))
            if not process.term and not bounds.whole_saves:
                yield (
                    f"slurm: sends TERM to the stale attempt {index}",
                    put(world, index, process._replace(term=True)),
                )


def requeue(world: World) -> tuple[World, str]:
    """``scontrol requeue Incomplete`` arrives. The world after it, and the answer."""
    if world.job.state == RUNNING:
        return _ends_attempt(world, by_us=True), OK
    # Of a job that waits it changes nothing, and a job that has ended stays so.
    return world, OK if world.job.state in (PENDING, COMPLETING) else REFUSED


def update(world: World, features: str, begin: int | None) -> tuple[World, str]:
    """``scontrol update`` of the type that the job asks for arrives. The world after it, and the
    answer. ``begin``: its StartTime, None where that is not changed."""
    job = world.job
    if job.state == PENDING:
        at = job.begin if begin is None else begin
        return world._replace(job=job._replace(features=features, begin=at)), OK
    if job.state == COMPLETING:
        # The begin time is overwritten by the requeue.
        return world._replace(job=job._replace(features=features)), OK
    return world, REFUSED


def _starts(world: World) -> Step:
    job = world.job
    after = world._replace(
        job=job._replace(
            state=RUNNING, on=job.features or DEFAULT_TYPE, age=SAME_SECOND, begin=0, by_us=False
        ),
        processes=(*world.processes, Process()),
    )
    if job.restarts and job.age == SAME_SECOND:
        after = after._replace(broken="job lost: started in the second of its requeue")
    elif job.restarts and job.age == SETTLING and not job.by_us:
        after = after._replace(broken="job lost: started beside what its node still ends")
    return f"slurm: starts attempt {job.restarts}", after


def _ends_attempt(world: World, *, by_us: bool) -> World:
    """The job is COMPLETING until its process has left."""
    job = world.job._replace(state=COMPLETING, by_us=by_us)
    process = world.processes[job.restarts]
    return put(world._replace(job=job), job.restarts, process._replace(term=True))


def acts_on_old_look(world: World) -> bool:
    """Whether a controller is about to act on a look from before this requeue.

    The time between its look and its commands is shorter than cred_expire and KillWait.
    """
    job = world.job
    return any(_acts(one) and one.job.restarts < job.restarts for one in world.controllers)


def _just_read_as_pending(world: World) -> bool:
    """Whether a controller that acts has read the present attempt as one that waits.

    A job does not start and lose its node between a look and the commands that follow from it.
    """
    return any(
        _acts(one) and one.job.state == PENDING and one.job.restarts == world.job.restarts
        for one in world.controllers
    )


def _acts(one: Controller) -> bool:
    return one.job is not None and not one.stalled
