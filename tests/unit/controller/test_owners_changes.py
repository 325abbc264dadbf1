"""What a job's owner changes after the controller did stays as it is, whenever that was."""

from dataclasses import replace

import pytest
from hand_made import NOW, as_cluster, config, decide, hinted, job, observation, running

from slurm_hadar.controller.actuation import repair
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, ask_to_save, send_hints
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.slurm.traffic import Traffic

OURS = Steering(
    gpus={"k80": 1}, time=NOW - 900, moves=1,
    was={"Features": "", "Partition": "gpu"}, wrote={"Features": "k80", "Partition": "gpu"},
)  # fmt: skip
ALL = Declaration(types=("any",), checkpoint="yes", partitions=("gpu",))
GROUPS = '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'


class Cluster:
    """A Slurm that takes all, or answers with ``error``."""

    def __init__(self, error=None):
        self.sent, self.error, self.traffic = [], error, Traffic(lambda: NOW)

    def apply(self, updates):
        self.sent += [dict(update.fields) for update in updates]
        return [self.error for _ in updates]

    def read_jobs(self, ids):
        return [job(id_, held=True) for id_ in ids]

    def release(self, id_):
        self.sent.append(f"release {id_}")


@pytest.fixture
def context(tmp_path):
    (tmp_path / "exchange").mkdir()
    site = f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n'
    store = Store.open(tmp_path / "state")
    yield ActionContext(as_cluster(Cluster()), store, config(site + GROUPS), clock=lambda: NOW)
    store.close()


def believed(context, known, one, busy=()):
    return steering_store.without_foreign({"1": known}, {"1": one}, context.config, busy, NOW)["1"]


def changed(**more):
    """After requeuehold its owner set both and released it: it ran again before any tick."""
    usual = {"restarts": 2, "submit_s": NOW - 100, "features": "v100", "partitions": ("v100",)}
    return running("1", {"v1": {"v100": 1}}, declaration=ALL, **{**usual, **more})


def test_what_was_set_while_no_tick_looked_is_known_when_the_job_runs(context):
    ours = believed(context, OURS, changed(partitions=("other",)))
    assert set(ours.foreign) == {"Features", "Partition"} and not ours.was and not ours.wrote
    # In the attempt that the controller began Slurm may show less than was written (--prefer).
    assert believed(context, OURS, changed(submit_s=NOW - 950)) == OURS
    here = changed(features="k80", partitions=("gpu",))
    assert believed(context, OURS, here) == OURS
    assert believed(context, OURS, changed(), busy={"1"}) == OURS


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_nice_that_was_set_before_a_tick_saw_the_job_run_is_its_owners(context, restarts):
    """A job that runs takes another Nice, so it need not have been requeued since."""
    moved = replace(OURS, was={**OURS.was, "Nice": "0"}, wrote={**OURS.wrote, "Nice": "-500"})
    since_s = NOW - 950 if restarts == 1 else NOW - 100
    here = changed(restarts=restarts, submit_s=since_s, nice=77)
    ours = believed(context, moved, here)
    assert "Nice" in ours.foreign and "Nice" not in {*ours.was, *ours.wrote}
    actions = decide(
        observation([here], steering={"1": ours}), {"1": {"k80": 1}}, config("")
    ).actions
    for action in actions:
        assert "Nice" not in {*action.fields, *action.steering.was, *action.steering.wrote}
    ours_still = changed(restarts=restarts, submit_s=since_s, nice=-500)
    assert "Nice" in believed(context, moved, ours_still).was
    # The answer to the update that wrote it did not come, and it was not taken.
    unsure = replace(moved, unsure={"Nice": "-400"})
    before = changed(restarts=restarts, submit_s=since_s, nice=-400)
    assert believed(context, unsure, before).was["Nice"] == "0"
    given = decide(
        observation([before], steering={"1": unsure}), {"1": {"v100": 1}}, config("")
    ).actions
    assert [action.fields["Nice"] for action in given if "Nice" in action.fields] == ["0"]


@pytest.mark.parametrize("to", ["k80", "p100"])
@pytest.mark.parametrize("groups", ["", GROUPS])
def test_a_later_move_restores_no_older_value(context, to, groups):
    here = changed()
    ours = believed(context, OURS, here)
    shown = observation([here], steering={"1": ours})
    for action in decide(shown, {"1": {to: 1}}, config(groups)).actions:
        assert "Features" not in action.fields
        assert "Features" not in action.steering.was and "Features" in action.steering.foreign


def test_it_is_kept_before_the_job_runs_and_outlives_the_move(context):
    waits = replace(changed(), state=job().state, partitions=("k80", "v100"), features="")
    context.keep(waits, OURS)
    ours = believed(context, OURS, waits)
    repair.keep_owners_changes(context, observation([waits], steering={"1": ours}))
    stored = decode(context.store.steerings(["1"])["1"])
    assert set(stored.foreign) == {"Features", "Partition"} and stored.was == {}
    action = Action(Kind.MOVE, changed(), {}, replace(ours, gpus={"p100": 1}), "why")
    ask_to_save(context, action, False, NOW)
    (entry,) = context.store.open_entries()
    assert entry.details["stood"] == {
        "Features": "v100",
        "Partition": "k80,v100",
        "ReqNodeList": "",
    }
    assert set(steering_of(entry.details, NOW).foreign) == {"Features", "Partition"}


MOVE = {
    "gpus": {"k80": 1}, "nodes": {"k1": {"k80": 1}}, "moves": 2, "save": "abc", "restarts": 1,
    "was": {"Features": "", "Partition": "gpu"},
    "wrote": {"Features": "k80", "Partition": "k80,v100"},
    "fields": {"Features": "k80", "Partition": "k80,v100"}, "foreign": [],
    "stood": {"Features": "", "Partition": "gpu", "ReqNodeList": ""},
}  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "sent", "foreign"),
    [
        ({"features": "p100"}, {}, {"Features"}),
        ({"features": "p100", "partitions": ("p100",)}, {}, {"Features", "Partition"}),
        ({"required_nodes": ("p1",)}, {}, {"ReqNodeList"}),
        ({}, {"Features": "k80", "Partition": "k80,v100"}, set()),
        # Slurm itself puts the partition first in which the job ran.
        ({"features": "k80"}, {"Features": "k80", "Partition": "k80,v100"}, set()),
    ],
)
def test_what_is_set_in_the_middle_of_a_move_is_kept(context, shown, sent, foreign):
    context.store.begin("1", "move", "requeued", NOW - 20, MOVE)
    usual = {"restarts": 2, "submit_s": NOW - 60, "eligible_s": NOW - 1, "declaration": ALL}
    waits = job("1", **{**usual, "partitions": ("gpu",), **shown})
    said = advance(context, {"1": waits}, {}, NOW).messages
    assert context.cluster.sent == [{**sent, "StartTime": "now"}]
    stored = decode(context.store.steerings(["1"])["1"])
    assert set(stored.foreign) == foreign and not foreign & {*stored.was, *stored.wrote}
    assert bool(foreign) == ("changed while it moved" in said[0]) == (not stored.gpus)
    assert context.store.open_entries() == []


def test_a_list_that_a_move_came_too_late_to_write_is_no_mark_of_another_author(context):
    """The job began by itself: its list is as it stood, or as an unanswered update left it."""
    context.store.begin("1", "move", "requeued", NOW - 20, MOVE)
    context.keep(job("1"), steering_of(MOVE, NOW - 20))
    runs = running("1", {"v1": {"v100": 1}}, restarts=2, partitions=("v100",), declaration=ALL)
    assert "started by itself" in advance(context, {"1": runs}, {}, NOW).messages[0]
    ours = decode(context.store.steerings(["1"])["1"])
    for names, his in (("gpu", False), ("k80,v100", False), ("p100", True)):
        waits = job("1", partitions=tuple(names.split(",")), restarts=3, declaration=ALL)
        assert ("Partition" in believed(context, ours, waits).foreign) is his, names
    # The next move starts from either, too.
    ask_to_save(
        context, Action(Kind.MOVE, runs, {}, replace(ours, gpus={"p100": 1}), "w"), False, NOW
    )
    (entry,) = context.store.open_entries()
    assert "Partition" not in entry.details["stood"]


def test_after_an_undo_a_change_of_the_owner_is_his(context):
    stuck = job("1", features="k80", partitions=("gpu",), held=True, priority=0, declaration=ALL,
                reason="BadConstraints", restarts=1)  # fmt: skip
    shown = observation([stuck], steering={"1": OURS})
    assert repair.undo_impossible_placements(context, shown)
    ours = decode(context.store.steerings(["1"])["1"])
    # Slurm took it; and where it did not, what is there still is ours.
    for features, his in (("", False), ("k80", False), ("p100", True)):
        now = job("1", features=features, partitions=("gpu",), restarts=1, declaration=ALL)
        assert ("Features" in believed(context, ours, now).foreign) is his


def test_features_that_its_owner_sets_and_clears_leave_it_the_types_that_he_accepts(context):
    """Slurm holds a job with the reason BadConstraints where a partition of its list has no node
    with its features."""
    some = Declaration(types=("v100", "k80"), partitions=("gpu",), listed=("v100", "k80"))
    held = job("1", features="k80", partitions=("v100", "k80"), held=True, priority=0,
               declaration=some, reason="BadConstraints")  # fmt: skip
    assert repair.undo_impossible_placements(context, observation([held], steering={}))
    assert context.cluster.sent[0]["Partition"] == "k80"
    ours = decode(context.store.steerings(["1"])["1"])
    assert ours.was == {"Partition": "gpu"} and "Partition" not in ours.foreign
    # Other features, while a tick has not steered it.
    other = replace(held, features="v100", partitions=("k80",))
    assert repair.undo_impossible_placements(context, observation([other], steering={"1": ours}))
    assert context.cluster.sent[-2]["Partition"] == "v100"
    ours = decode(context.store.steerings(["1"])["1"])
    free = replace(held, features="", partitions=("v100",), held=False, priority=1, reason="")
    shown = observation([free], steering={"1": believed(context, ours, free)})
    assert hinted(decide(shown, {}, context.config))["1"] == {"Partition": "v100,k80"}


def test_after_an_update_without_an_answer_a_change_of_the_owner_is_his(context):
    before = Steering(time=NOW - 60, was={"Partition": "gpu"}, wrote={"Partition": "v100,k80"})
    waits = job("1", partitions=("v100", "k80"), declaration=ALL)
    context.keep(waits, before)
    after = replace(before, wrote={"Partition": "k80,v100"})
    action = Action(Kind.HINT, waits, {"Partition": "k80,v100"}, after, "why")
    silent = replace(context, cluster=Cluster(SlurmError("no answer", retry=True)))
    send_hints(silent, [action], NOW)
    ours = decode(context.store.steerings(["1"])["1"])
    for names, his in (("v100,k80", False), ("k80,v100", False), ("k80", True), ("gpu", True)):
        now = replace(waits, partitions=tuple(names.split(",")))
        found = believed(context, ours, now)
        assert (found.foreign == ("Partition",)) is his, names
        if his:
            assert (
                hinted(decide(observation([now], steering={"1": found}), {}, context.config)) == {}
            )


def test_what_earlier_releases_kept_is_read(context):
    old = "[hadarplan;t=1;was.Partition=gpu;set.Partition=v100,k80]"
    assert decode(old).unsure == {} and merge("", decode(old)) == old


def test_a_list_that_slurm_may_not_have_taken_is_no_mark_of_another_author(context):
    """Else each move would end as it began, and the next tick would try it again."""
    unsure = replace(OURS, wrote={"Partition": "k80,v100"}, unsure={"Partition": "gpu"})
    runs = changed(features="", partitions=("gpu",))
    context.keep(runs, unsure)
    ask_to_save(
        context, Action(Kind.MOVE, runs, {}, replace(unsure, gpus={"p100": 1}), "w"), False, NOW
    )
    (entry,) = context.store.open_entries()
    assert entry.details["stood"] == {"Features": "", "ReqNodeList": ""}
