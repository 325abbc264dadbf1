"""Steering jobs that wait, by nothing but the order of their partition list, and by their Nice
where they exchange places in the queue.

A waiting managed job is an ordinary eligible job. With a partition per GPU type the order of its
list says what it prefers when several types are free; when all are busy it takes the first that is
freed, so the order never makes it wait. No other field of a waiting job is changed, except that
what a move or an earlier version left there is taken back.

Measured on 22.05.8 and 24.11.5: a list costs other jobs nothing, while Features that are narrowed
make those behind wait for backfill, 2 to 23 s.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.pending import (
    list_updates,
    queue_head,
    removed_partition_groups,
)
from slurm_hadar.controller.actuation.pending.hint_updates import (
    Hint,
    HintInput,
    Wait,
    recorded,
    restored_after_moves,
    updates,
    with_nice,
)
from slurm_hadar.controller.actuation.pending.partition_preference import (
    PreferenceInput,
    expected_end,
    longest_wait,
    preferred,
    with_returned,
    without_slower_partitions,
)
from slurm_hadar.controller.actuation.restored_request import (
    restored_where_it_fits,
    within_types,
)
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.empty_nodes import EmptyNodes
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.waits import expected_waits
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Plan

_UNFIT = "it fits in no node of a partition"
_CUT = "a partition of its group is not UP, and Slurm would cut the list"
_BEHIND = "its list comes back when it is near the head of the queue"


def hints(
    snapshot: Snapshot,
    plan: Plan,
    given: HintInput,
    nices: Mapping[str, str] = MappingProxyType({}),
    staying: set[str] | None = None,
) -> list[Action]:
    """What is sent to the jobs that wait: nothing where nothing changes.

    ``nices``: of jobs with another job's place in the queue; ``staying``: see :func:`updates`.
    """
    observation, config = given.observation, given.config
    waiting = _waiting(snapshot, observation)
    excluded = [observation.jobs[id_] for id_ in snapshot.excluded]
    again = removed_partition_groups.typed_again(
        [*(target.job for target in waiting), *excluded], observation, config
    )
    may_wait = any(longest_wait(target.job, config) for target in waiting)
    empty = EmptyNodes(observation)
    waits = (
        expected_waits(observation, snapshot, empty)
        if may_wait and not observation.in_order
        else {}
    )
    inputs = PreferenceInput(snapshot, plan, observation, config, empty, waits)
    kept = [target for target in waiting if target.job.id not in again]
    hint_of, taken_back = _lists(kept, inputs, nices)
    hint_of |= {id_: Hint(nice=nices.get(id_, ""), typed=name) for id_, name in again.items()}
    taken_back_ids = {action.job.id for action in taken_back}
    ids = [target.job.id for target in waiting if target.job.id not in taken_back_ids]
    found = updates([*ids, *snapshot.excluded], hint_of, snapshot.excluded, given, staying)
    found += [action for action in taken_back if not given.is_refused(action.job)]
    return [*found, *restored_after_moves(snapshot, given)]


def _lists(
    waiting: Sequence[SchedulableJob], inputs: PreferenceInput, nices: Mapping[str, str]
) -> tuple[dict[str, Hint], list[Action]]:
    """The hints of the jobs at the head of the queue, and what takes lists back from others."""
    observation, config = inputs.observation, inputs.config
    hint_of = {id_: Hint(nice=nice) for id_, nice in nices.items()}
    most_records = queue_head.most_records(observation.queue_depth)
    records_left, behind = most_records, list[list[SchedulableJob]]()
    unfit, cut = dict[str, tuple[str, ...]](), dict[str, tuple[str, ...]]()
    for targets in _records(waiting):
        in_plan = (task for task in targets if task.job.id in inputs.plan.placements)
        placed = next(in_plan, targets[0])
        placed, opened = with_returned(placed, inputs)
        preference = preferred(placed, inputs)
        # Behind the head of the queue no job gets a list.
        names = preference.names
        if records_left > 0:
            names = without_slower_partitions(placed, preference, inputs)
        wait = None
        if len(names) < len(preference.names):
            until_s = placed.job.eligible_s + longest_wait(placed.job, config)
            wait = Wait(until_s, expected_end(placed, names[0], inputs))
        if names and records_left >= len(names):
            records_left -= len(names)
            for target in targets:
                nice = nices.get(target.job.id, "")
                leaves = list_updates.names_removed(target.job, observation, config)
                hint_of[target.job.id] = Hint(names, nice, wait, leaves=leaves, opened=opened)
        elif preference.is_unfit or preference.is_cut:
            typed = queue_head.typed_partitions(placed.job, observation, config)
            typed_of = cut if preference.is_cut else unfit
            # A list that is whole starts the job as well.
            whole = preference.is_cut and queue_head.is_whole(placed.job, typed, config)
            stays = whole and list_updates.would_change_places(
                placed.job, observation.steered(placed.job.id), observation
            )
            if set(typed) != set(placed.job.partitions) and not stays:
                typed_of |= {target.job.id: typed for target in targets}
        else:
            behind.append(targets)
    too_deep = queue_head.too_deep(behind, most_records - records_left, observation, config)
    taken_back = [
        *_taken_back(unfit, _UNFIT, hint_of, inputs),
        *_taken_back(cut, _CUT, hint_of, inputs),
        *_taken_back(too_deep, _BEHIND, hint_of, inputs),
    ]
    return hint_of, taken_back


def _waiting(snapshot: Snapshot, observation: Observation) -> list[SchedulableJob]:
    """The jobs that wait, in Slurm's order."""
    found = [
        target
        for target in snapshot.schedulable.values()
        if target.job.state is JobState.PENDING and not target.starting
    ]
    return sorted(found, key=lambda one: pending_demand.queue_key(one.job, observation))


def _records(waiting: Iterable[SchedulableJob]) -> Iterable[list[SchedulableJob]]:
    """The jobs by record: tasks of an array that Slurm keeps in one are one job to it, and stay
    one."""
    found: dict[str, list[SchedulableJob]] = {}
    for target in waiting:
        job = target.job
        found.setdefault(str(job.raw_id) if job.array_tasks else job.id, []).append(target)
    return found.values()


def _taken_back(
    typed: Mapping[str, tuple[str, ...]],
    why: str,
    hint_of: Mapping[str, Hint],
    inputs: PreferenceInput,
) -> list[Action]:
    """These jobs with the partitions that their owner typed, and with the features of the types
    that the owner declared, where the list alone said them."""
    observation, config, found = inputs.observation, inputs.config, []
    for id_, names in typed.items():
        job, steered = observation.jobs[id_], observation.steered(id_)
        fields = with_nice(
            job_updates.undo_fields(job, steered), job, hint_of.get(id_, Hint()).nice
        )
        fields["Partition"] = ",".join(names)
        if why == _UNFIT:
            fields = restored_where_it_fits(job, steered, fields, config)
        else:
            fields = within_types(job, steered, fields, config, keeps_list=False)
        if (
            # It gets its Nice as a job that nothing is taken back from.
            list_updates.comes_later(fields, job, observation)
            or not job_updates.differing(job, fields)
        ):
            continue
        was = {**steered.was, **fields, "Partition": ",".join(names)}
        steering = recorded(job, fields, replace(steered, was=was), observation)
        found.append(Action(Kind.HINT, job, fields, steering, why))
    return found
