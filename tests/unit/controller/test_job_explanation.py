"""What is known of one job, in a row and as an explanation."""

import shlex
from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import NOW, config, job, observation, running, that_sees

from slurm_hadar.controller.actuation.move_steps import MOVED
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import job_report
from slurm_hadar.controller.presentation.job_explanation import (
    changed,
    explanation_of,
    named,
    row_of,
    undo,
)
from slurm_hadar.controller.presentation.job_report import of_controller
from slurm_hadar.controller.presentation.overview import Sight, Viewer, overview
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import UnknownJobError, UsageError
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.reports import text
from slurm_hadar.reports.status import ControllerState
from slurm_hadar.slurm import updates
from slurm_hadar.slurm.interface import Update
from slurm_hadar.slurm.waiting_age import AgePriority

SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
LIST = Declaration(types=("v100", "p100", "k80"), model="resnet50", checkpoint="yes")


def test_status_names_slurms_own_reason_while_a_job_waits():
    waits, runs = job("1", reason="Resources"), running("2", {"k1": {"k80": 1}})
    decided = Decision("1", NOW, "waits", "no GPU is free")
    shown = observation([waits, runs])
    assert row_of(waits, shown, decided).reason == "Slurm: Resources; no GPU is free"
    assert row_of(waits, shown, None).reason == "Slurm: Resources"
    limit = replace(waits, reason="JobArrayTaskLimit")
    kept = replace(decided, reason="Slurm keeps it waiting: JobArrayTaskLimit")
    assert row_of(limit, shown, kept).reason == kept.reason
    assert row_of(replace(runs, reason="x"), shown, decided).reason == "no GPU is free"


def test_a_job_that_started_since_the_last_tick_does_not_seem_to_wait():
    began = replace(running("2", {"k1": {"k80": 1}}), start_s=float(int(NOW)))
    for placement in ("waits", "not steered"):
        decided = Decision("2", NOW + 0.7, placement, "it waits for another job")
        said = "it started since the last tick, which said: it waits for another job"
        assert row_of(began, observation([began]), decided).reason == said
        later = replace(decided, time_s=NOW + 2)
        assert row_of(began, observation([began]), later).reason == "it waits for another job"
    placed = replace(decided, placement="1 x k80 on k1", reason="ends in 3 min")
    assert row_of(began, observation([began]), placed).reason == "ends in 3 min"
    old = row_of(began, observation([began]), replace(decided, time_s=NOW - 9), "decided 9 s ago")
    assert old.reason.startswith("decided 9 s ago: it started since the last tick, which said: ")


def test_explain_and_doctor_say_that_a_job_started_since_the_last_tick(tmp_path):
    began = replace(running("2", {"k1": {"k80": 1}}), start_s=NOW - 5)
    with closing(Store.open(tmp_path / "state")) as store:
        store.decisions.record([Decision("2", NOW - 60, "not steered", "it waits for another job")])
        controller = that_sees(store, observation([began]), SITE)
        found, report = explanation_of(controller, "2"), of_controller(controller, "2")
    said = "it started since the last tick, which said: it waits for another job"
    assert found.reason == said == found.row.reason
    assert f"not steered: {said}" in report.now
    assert not any("it is not steered" in one.what for one in report.problems)


@pytest.mark.parametrize(
    ("samples", "rate", "done"), [(0, 0.0, None), (0, 2.0, 0.0), (64, 0.0, 0.1), (9999, 2.0, 1.0)]
)
def test_before_its_first_report_a_job_is_not_said_to_have_done_nothing(samples, rate, done):
    declared = replace(LIST, samples=640)
    runs = running("1", {"k1": {"k80": 1}}, declaration=declared)
    began = Progress("1", NOW, 0, "k1", 1, False, NOW, "m", samples, rate, 0.0, 64, 1)
    assert row_of(runs, observation([runs], progress={"1": began}), None).done == done
    assert row_of(runs, observation([runs]), None).done is None


def test_each_changed_field_is_reported_with_its_owners_value():
    was = {"Partition": "gpu", "Features": "", "ReqNodeList": "v1", "NumNodes": "1-1"}
    one = job(partitions=("v100", "p100", "k80"), features="k80", node_count=1)
    known = {"1": Steering({"k80": 1}, time=NOW, was=was)}
    assert changed(one, observation([one], steering=known), SITE) == [
        "Partition: v100,p100,k80 (asked for: gpu)",
        "Features: k80 (asked for: nothing)",
        "ReqNodeList: nothing (asked for: v1)",
    ]
    assert changed(one, observation([one]), SITE) == []


@pytest.mark.parametrize(
    ("nice", "restarts", "why"),
    [
        (200, 0, ": it has a later place in the queue, exchanged with managed jobs (queue.excha"),
        (-50, 0, ": it has an earlier place in the queue, exchanged with managed jobs (queue.ex"),
        (-50, 1, ": for the age that it lost by a requeue, until it runs"),
    ],
)
def test_a_nice_of_ours_has_its_reason_also_without_the_controllers_file(nice, restarts, why):
    one = job(nice=nice, restarts=restarts)
    known = {"1": Steering(time=NOW, was={"Nice": "100"}, wrote={"Nice": str(nice)})}
    (line,) = changed(one, observation([one], steering=known), SITE)
    assert line.startswith(f"Nice: {nice} (asked for: 100){why}")
    (line,) = changed(replace(one, nice=7), observation([one], steering=known), SITE)
    assert line == "Nice: 7 (asked for: 100)", "somebody else set it since the last tick"


def test_the_list_that_hbatch_wrote_is_reported_before_any_tick():
    declared = replace(LIST, partitions=("gpu",), listed=("v100", "p100"))
    one = job(partitions=("v100", "p100"), declaration=declared)
    assert changed(one, observation([one]), SITE) == ["Partition: v100,p100 (asked for: gpu)"]
    assert undo(one, observation([one]), SITE)[1] == (
        "By hand: scontrol update JobId=1 Partition=gpu"
    )
    runs = running("1", {"v1": {"v100": 1}}, partitions=("v100",), declaration=declared)
    assert changed(runs, observation([runs]), SITE) == ["Partition: v100 (asked for: gpu)"]
    typed = replace(runs, declaration=replace(declared, partitions=("k80", "v100")))
    assert changed(typed, observation([typed]), SITE) == []


@pytest.mark.parametrize("version", [(22, 5, 8), (24, 11, 5)])
def test_the_printed_command_is_what_the_controller_sends(version):
    """Slurm has other words for GPUs than it shows."""
    was = {"Partition": "gpu", "TresPerNode": "gpu:1", "TresPerJob": "gpu:4"}
    known = {"1": Steering(time=NOW, was=was)}
    for one, begin in ((job(), {}), (running("1", {"k1": {"k80": 2}}), {"StartTime": "now"})):
        shown = replace(observation([one], steering=known), slurm_version=version)
        command = undo(one, shown, SITE)[-1].rpartition(": scontrol ")[2]
        sent = updates.update_arguments(Update("1", {**was, **begin}), version)
        assert shlex.split(command) == ["update", *sent]
        assert "Gres=gpu:1" in sent


OFF = Declaration(off=True)
BEFORE = {"Partition": "gpu", "TresPerNode": "gpu:1", "Nice": "0"}


def opted_out(one):
    record = Steering(time=NOW, was=BEFORE, wrote={**BEFORE, "TresPerNode": "gpu:2"})
    return replace(observation([one]), opted_out={one.id: record})


def test_an_opted_out_job_that_runs_shows_what_a_requeue_would_and_how_to_restore_it():
    two = GpuRequest(per_node={UNTYPED: 2})
    here = running("1", {"v1": {"v100": 2}}, declaration=OFF, partitions=("v100",), request=two)
    shown = opted_out(here)
    assert changed(here, shown, SITE) == [
        "Partition: v100 (asked for: gpu)",
        "TresPerNode: gpu:2 (asked for: gpu:1)",
    ]
    (command,) = undo(here, shown, SITE)
    assert command.endswith(" scontrol update JobId=1 Partition=gpu Gres=gpu:1 StartTime=now")


def test_an_opted_out_job_that_waits_shows_only_what_still_differs():
    waits = job("1", declaration=OFF, partitions=("gpu",), request=GpuRequest({UNTYPED: 1}))
    shown = opted_out(waits)
    assert changed(waits, shown, SITE) == [] == undo(waits, shown, SITE)
    requeued = replace(waits, partitions=("v100", "p100"))
    assert undo(requeued, opted_out(requeued), SITE) == [
        "By hand: scontrol update JobId=1 Partition=gpu"
    ]


def test_a_decision_made_before_the_opt_out_is_not_shown(tmp_path):
    here = running("1", {"v1": {"v100": 2}}, declaration=OFF)
    with closing(Store.open(tmp_path / "state")) as store:
        store.decisions.record([Decision("1", NOW - 600, "2 x v100 on v1", "waits for a v100")])
        controller = that_sees(store, opted_out(here), SITE)
        found, report = explanation_of(controller, "1"), of_controller(controller, "1")
    assert (found.decision, found.reason, found.row.reason) == ("", "", "")
    assert found.notes[0] == "Not steered: its owner opted it out"
    assert not any("waits for a v100" in line for line in report.now)
    assert report.undo and "Gres=gpu:1" in report.undo[-1]


def test_a_request_that_slurm_is_not_given_has_no_command():
    known = {"1": Steering(time=NOW, was={"Features": "a\nb"})}
    (_, note) = undo(job(), observation([job()], steering=known), SITE)
    assert note.startswith("No command restores its request: ") and "\n" not in note


@pytest.mark.parametrize("asked", ["84_2", "86"])
def test_a_task_of_an_array_is_found_by_its_own_job_id_too(tmp_path, asked):
    """What SLURM_JOB_ID says in the task. The last task of an array has the array's."""
    task = replace(job("84_2", array_job_id=84), raw_id=86)
    last = job("84_3", array_job_id=84)
    shown = observation([task, last])
    assert named(shown, "84") == "84", "an array of several"
    assert named(shown, "87") == "87" and named(shown, "84_3") == "84_3"
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, shown, SITE)
        assert explanation_of(controller, asked).row.id == "84_2"
        assert of_controller(controller, asked).id == "84_2"


def test_an_explanation_tells_what_was_changed_and_how_to_take_it_back(tmp_path):
    one = job(declaration=LIST, partitions=("v100", "p100", "k80"))
    known = {"1": Steering(time=NOW, was={"Partition": "gpu"})}
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, observation([one], steering=known), SITE)
        found = explanation_of(controller, "1")
    assert found.notes == [
        "A restart is counted at 30 s: assumed, as none is declared",
        "Partition: v100,p100,k80 (asked for: gpu)",
        "To opt it out: hadar optout 1",
        "By hand: scontrol update JobId=1 Partition=gpu",
    ]
    console = text.console(width=100)
    with console.capture() as kept:
        console.print(text.explain(found))
    assert "Partition: v100,p100,k80 (asked for: gpu)" in kept.get()


def test_an_explanation_says_that_a_move_costs_the_age_where_no_operator_restores_it(tmp_path):
    """A user may not lower a Nice below 0."""
    runs = running("1", {"k1": {"k80": 1}}, declaration=LIST)
    waits = job("1", declaration=LIST, restarts=1)

    def age(one, rights="user", weight=1000):
        site = SITE.model_copy(update={"site": SITE.site.model_copy(update={"rights": rights})})
        shown = replace(observation([one]), age=AgePriority(weight=weight, most_s=3600.0))
        with closing(Store.open(tmp_path / "state")) as store:
            controller = that_sees(store, shown, site)
            notes = explanation_of(controller, "1").notes
        return [note.partition(" the age")[0] for note in notes if " the age that " in note]

    assert age(runs) == ["A move takes away"]
    assert age(waits) == ["Its requeue took away"]
    assert age(replace(waits, restarts=0)) == []
    assert age(runs, rights="operator") == age(runs, weight=0) == []
    assert age(replace(runs, declaration=replace(LIST, checkpoint=""))) == []


def test_an_explanation_names_no_place_that_the_job_was_moved_from_since(tmp_path):
    """A daemon answers of its last tick, which looked at Slurm before it moved the job."""
    one = running("1", {"k1": {"k80": 1}}, declaration=LIST)
    details = {"gpus": {"v100": 1}, "nodes": {"v1": {"v100": 1}}, "restarts": 0}
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, observation([one]), SITE)
        store.decisions.record([Decision("1", NOW, "1 x v100 on v1", "it is faster there")])
        move = store.begin("1", "move", "asked", NOW + 1, details)
        assert explanation_of(controller, "1").row.here == {"k80": 1}, "while it saves"
        store.end(move, MOVED, NOW + 4)
        found = explanation_of(controller, "1")
        assert found.row.here == {} and not found.row.nodes
        said = "moved to 1 x v100 on v1 since the controller last looked at Slurm"
        assert found.reason == f"{said}; it is faster there"
        there = running("1", {"v1": {"v100": 1}}, declaration=LIST, restarts=1)
        controller.shown = observation([there], now=NOW + 9)
        found = explanation_of(controller, "1")
        assert found.row.here == {"v100": 1} and found.reason == "it is faster there"


def test_an_explanation_counts_the_work_that_a_move_repeats_beside_the_restart(tmp_path):
    again = replace(LIST, checkpoint="restart", lose=600.0)
    one = running("1", {"k1": {"k80": 1}}, declaration=again, start_s=NOW - 39)
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, observation([one]), SITE)
        notes = explanation_of(controller, "1").notes
    assert any(note.endswith("declared; a move now repeats 39 s of work besides") for note in notes)


def test_no_optout_of_a_job_that_has_ended_is_offered():
    one = job(declaration=LIST, partitions=("v100", "p100", "k80"))
    assert undo(one, observation([one]), SITE)[0].startswith("To opt it out")
    task = replace(one, id="7_1", array_job_id=7)
    said = undo(task, observation([task]), SITE)[0]
    assert said == "To opt it out: hadar optout 7_1; all tasks of its array: hadar optout 7"
    ended = replace(one, state=JobState.FINISHED, slurm_state="COMPLETED")
    assert undo(ended, observation([ended]), SITE) == []


def test_a_job_that_slurm_does_not_show_has_no_explanation(tmp_path):
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, observation([]), SITE)
        with pytest.raises(UnknownJobError, match=r"Slurm shows no job 7$"):
            explanation_of(controller, "7")
        store.end(store.begin("7", "hint", "sent", NOW, {}), "done", NOW)
        report = r"Slurm shows no job 7; it has ended. hadar doctor 7 shows what is kept of it$"
        with pytest.raises(UnknownJobError, match=report):
            explanation_of(controller, "7")
        assert job_report.of_controller(controller, "7").events


@pytest.mark.parametrize(
    ("policy", "fork", "noted"),
    [
        ("hadar", (1, 4), True),
        ("hadare", (1, 4), False),
        ("timetable", (1, 4), False),
        ("hadar", (1, 1), False),
    ],
)
def test_copies_that_the_policy_does_not_make_are_noted(tmp_path, policy, fork, noted):
    site = config(f'[controller]\npolicy = "{policy}"\n')
    one = job(declaration=replace(LIST, fork=fork))
    shown = observation([one])
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, shown, site)
        notes = explanation_of(controller, "1").notes
    assert any("makes no copies" in note and policy in note for note in notes) is noted
    # A job that declares it gets no other batch, nor another number of GPUs.
    assert not any("no effect" in note for note in notes)


def test_a_declaration_that_the_comment_has_no_more_is_named(tmp_path):
    with pytest.raises(UsageError) as error:
        explained(tmp_path, job(declaration=None), "it waits")
    said = str(error.value)
    assert said.startswith("job 1 is not managed: its Comment has no declaration any more")
    assert "hadar set 1 KEY=VALUE declares again" in said


def test_a_partition_without_a_node_for_the_features_is_named(tmp_path):
    own = Declaration(types=("any",), partitions=("v100", "p100"), constraint="k80|v100")
    one = job(declaration=own, partitions=("v100", "p100"), features="k80|v100",
              reason="BadConstraints")  # fmt: skip
    found = explained(tmp_path, one, "Slurm keeps it waiting: BadConstraints")
    text = (
        "partition p100 has no node with Features=k80|v100, and Slurm starts no job with such a "
        "partition in its list; run: scontrol update JobId=1 Partition=v100"
    )
    assert [note for note in found.notes if "has no node" in note] == [f"It cannot start: {text}"]
    row = row_of(one, observation([one]), Decision("1", NOW, "waits", "Slurm keeps it waiting: "
                                                   "BadConstraints"))  # fmt: skip
    assert row.reason == f"Slurm keeps it waiting: BadConstraints; {text}"
    # Features that Slurm alone can read, those that fit, and those that fit nowhere.
    for features in ("[k80*1&v100*1]", "v100|p100"):
        fits = explained(tmp_path, replace(one, features=features), "it waits")
        assert not any("has no node" in note for note in fits.notes)
    nowhere = explained(tmp_path, replace(one, features="k80"), "it waits")
    (note,) = [note for note in nowhere.notes if "partitions v100 and p100 have no node" in note]
    assert note.endswith("run: scontrol update JobId=1 Features=")


def test_a_job_that_runs_on_a_type_that_it_excludes_says_so(tmp_path):
    """Its owner set the partition, at the submit or later."""
    declared = Declaration(types=("v100", "k80"), partitions=("p100",))
    here = {"p1": {"p100": 1}}
    one = running("1", here, declaration=declared, partitions=("p100",))
    text = (
        "It runs in Partition=p100, as its owner set it, which has no GPU type that "
        "types=v100,k80 accepts"
    )
    assert text in explained(tmp_path, one, "stays").notes
    later = replace(one, declaration=replace(declared, partitions=("gpu",)))
    theirs = {"1": Steering(foreign=("Partition",))}
    assert text in explained(tmp_path, later, "stays", steering=theirs).notes
    fits = running("1", {"v1": {"v100": 1}}, declaration=declared, partitions=("v100",))
    assert text not in explained(tmp_path, fits, "stays").notes


def explained(tmp_path, one, decided, **more):
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, observation([one], **more), SITE)
        store.decisions.record([Decision("1", NOW, "waits", decided)])
        return explanation_of(controller, "1")


def test_features_that_contradict_the_declared_types_are_named_with_what_to_type(tmp_path):
    """The note was "No command restores its request: job 1: an update without fields"."""
    some = replace(LIST, types=("v100", "p100"), partitions=("gpu",), listed=("v100", "p100"))
    one = job(
        declaration=some, partitions=("v100", "p100"), features="k80", reason="BadConstraints"
    )
    found = explained(tmp_path, one, "Slurm keeps it waiting: BadConstraints")
    assert not any("without fields" in note for note in found.notes)
    (note,) = [note for note in found.notes if "Features=k80" in note]
    assert note == (
        "It cannot start: Features=k80 excludes each GPU type that types=v100,p100 accepts; "
        "run: scontrol update JobId=1 Features="
    )
    fits = explained(tmp_path, replace(one, features="v100"), "no GPU is free")
    assert not any("excludes each GPU type" in note for note in fits.notes)


def test_a_partition_of_the_owners_without_an_accepted_type_is_said_to_start_it(tmp_path):
    """The reason was that no GPU of the accepted types is open to it."""
    some = replace(LIST, types=("v100", "p100"), partitions=("gpu",), listed=("v100", "p100"))
    theirs = {"1": Steering(time=NOW, foreign=("Partition",))}
    one = job(declaration=some, partitions=("k80",), reason="Resources")
    found = explained(tmp_path, one, "no GPU of p100, v100 is open to it now", steering=theirs)
    assert (
        found.reason
        == found.row.reason.removeprefix("Slurm: Resources; ")
        == (
            "Slurm starts it in Partition=k80, as its owner set it, which has no GPU type that "
            "types=v100,p100 accepts"
        )
    )
    other = replace(one, partitions=("gpu",))
    assert "is open to it" in explained(tmp_path, other, "is open to it", steering=theirs).reason


def all_three(tmp_path, one, decided, **more):
    """What explain, status and doctor say of a job: the last decision, and problems of doctor."""
    with closing(Store.open(tmp_path / "state")) as store:
        controller = that_sees(store, observation([one], **more), SITE)
        store.decisions.record([Decision("1", NOW, "not steered", decided)])
        last = store.decisions.last()
        entries = store.moves_since(0.0)
        sight = Sight(
            controller.observe(), SITE, ControllerState("acts", "h", NOW), "", last, entries
        )
        (row,) = overview(sight, Viewer(0, everything=True)).rows
        report = of_controller(controller, "1")
        return explanation_of(controller, "1").reason, row, report


def test_status_and_doctor_correct_a_decision_as_explain_does(tmp_path):
    some = replace(LIST, types=("v100", "p100"), partitions=("gpu",), listed=("v100", "p100"))
    theirs = {"1": Steering(time=NOW, foreign=("Partition",))}
    one = job(declaration=some, partitions=("k80",), reason="Resources")
    decided = "no GPU of p100, v100 is open to it now"
    reason, row, report = all_three(tmp_path, one, decided, steering=theirs)
    assert reason.startswith("Slurm starts it in Partition=k80, as its owner set it")
    assert row.reason == f"Slurm: Resources; {reason}"
    assert f"not steered: {reason}" in report.now
    texts = [*report.now, *(one.what for one in report.problems)]
    assert not any("is open to it" in text for text in texts)
    assert f"it is not steered: {reason}" in texts


@pytest.mark.parametrize(
    ("one", "what", "cures"),
    [
        (
            job(
                declaration=replace(LIST, types=("v100", "p100"), partitions=("gpu",)),
                features="k80",
                reason="BadConstraints",
            ),
            "it cannot start: Features=k80 excludes each GPU type that types=v100,p100 accepts",
            ("scontrol update JobId=1 Features=",),
        ),
        (
            running(
                "1",
                {"p1": {"p100": 1}},
                declaration=Declaration(types=("v100", "k80"), partitions=("p100",)),
                partitions=("p100",),
            ),
            "it runs in Partition=p100, as its owner set it, which has no GPU type that "
            "types=v100,k80 accepts",
            (),
        ),
    ],
)
def test_doctor_names_excluded_types_as_explain_does(tmp_path, one, what, cures):
    (found,) = [each for each in all_three(tmp_path, one, "x")[2].problems if each.what == what]
    assert tuple(found.cures) == cures


def test_status_and_doctor_say_of_a_job_that_moved_since_the_last_look_what_explain_does(tmp_path):
    here = running("1", {"k1": {"k80": 1}}, declaration=LIST)
    with closing(Store.open(tmp_path / "state")) as store:
        entry = store.begin(
            "1", "move", "asked", NOW - 9, {"gpus": {"v100": 1}, "nodes": {"v1": {"v100": 1}}}
        )
        store.end(entry, MOVED, NOW + 1)
    reason, row, report = all_three(tmp_path, here, "ends sooner there")
    said = "moved to 1 x v100 on v1 since the controller last looked at Slurm"
    assert reason == row.reason == f"{said}; ends sooner there"
    assert not row.here and not row.nodes and said in report.now
