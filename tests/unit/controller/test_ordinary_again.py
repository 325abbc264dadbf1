import contextlib

import pytest
from hand_made import CONFIG, NOW, as_cluster, config, job

from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.retire import ordinary
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, decode, merge


@pytest.mark.parametrize(
    ("leased", "ahead_s", "starts"),
    [(False, -60, False), (True, 250, True), (True, -60, False), (False, 250, False)],
)
def test_a_waiting_job_gets_its_own_request_back(leased, ahead_s, starts):
    """A begin time of an earlier release goes; another one is the owner's, and a word about one
    that has passed would clear the age."""
    declared = Declaration(types=("v100",), lease=leased)
    waiting = job(
        state=JobState.PENDING,
        declaration=declared,
        comment=declaration.merge("mine", declared),
        eligible_s=NOW + ahead_s,
    )
    update = ordinary(waiting, Steering(was={"Features": "", "Partition": "a,b"}), NOW, CONFIG)
    assert update.fields["Features"] == "" and update.fields["Partition"] == "a,b"
    assert ("StartTime" in update.fields) == starts
    assert update.fields["Comment"].startswith("mine")
    left = declaration.decode(update.fields["Comment"])
    assert left.off and not left.lease and left.types == ()


@pytest.mark.parametrize("own", ["", "mine", "mine [hadarplan;x=1]"])
def test_a_job_that_is_given_back_for_good_has_its_owners_comment_again(own):
    declared = Declaration(types=("v100",), constraint="ib", partitions=("a",))
    given = job(declaration=declared, comment=declaration.merge(own, declared))
    assert ordinary(given, Steering(), NOW, CONFIG, says_off=False).fields["Comment"] == own


def test_a_running_job_is_only_marked():
    running = job(state=JobState.RUNNING, declaration=Declaration(lease=True))
    steering = Steering(was={"Features": ""}, leased=True)
    assert set(ordinary(running, steering, NOW, CONFIG).fields) == {"Comment"}


SITE = config('[partitions.groups]\ngpu = ["v100", "k80"]\n')


@pytest.mark.parametrize(
    ("asked", "listed", "shown", "more", "owners"),
    [
        (("gpu",), ("k80", "v100"), ("v100", "k80"), {}, "gpu"),
        (("gpu",), ("v100",), ("v100",), {}, "gpu"),
        # Of an earlier release, which did not record it.
        (("gpu",), (), ("v100", "k80"), {}, "gpu"),
        (("k80", "v100"), (), ("v100", "k80"), {}, "k80,v100"),
        (("k80", "v100"), (), ("v100", "k80"), {"restarts": 1}, None),
        (("gpu",), ("v100", "k80"), ("v100", "k80"), {"restarts": 1}, "gpu"),
        # Its owner changed it since.
        (("gpu",), ("v100", "k80"), ("v100",), {}, None),
        (("gpu",), ("v100", "k80"), ("v100",), {"restarts": 1}, None),
        (("gpu",), (), ("v100",), {}, None),
        (("gpu",), (), ("gpu",), {}, None),
        (("gpu",), (), ("other",), {}, None),
        ((), (), ("v100", "k80"), {}, None),
    ],
)
def test_the_list_that_hbatch_wrote_becomes_what_its_owner_typed(
    asked, listed, shown, more, owners
):
    """No tick has steered the job, so that nothing but its declaration tells."""
    declared = Declaration(types=("any",), partitions=asked, listed=listed)
    waiting = job(declaration=declared, partitions=shown, **more)
    assert ordinary(waiting, Steering(), NOW, SITE).fields.get("Partition") == owners
    # A tick that put hbatch's list into another order kept that list as what it changed.
    kept = Steering(was={"Partition": ",".join(shown)})
    fields = ordinary(waiting, kept, NOW, SITE).fields
    of_hbatch = asked == ("gpu",) and set(shown) <= {"v100", "k80"}
    assert fields["Partition"] == ("gpu" if of_hbatch else ",".join(shown))
    left = declaration.decode(fields["Comment"])
    assert (left.partitions, left.listed) == (asked, ())
    # What its owner changed after hbatch or a tick is the owner's.
    theirs = Steering(foreign=("Partition",))
    assert "Partition" not in ordinary(waiting, theirs, NOW, SITE).fields


class _Died(BaseException):
    pass


class _Slurm:
    """What it answers to an update: nothing, as we die, or one answer to each."""

    def __init__(self, answer):
        self.answer = answer

    def apply(self, updates):
        if self.answer is _Died:
            raise _Died
        return [self.answer for _ in updates]


OWNERS, OURS = {"Partition": "gpu"}, {"Partition": "p100,k80"}


@pytest.fixture
def stopping(tmp_path):
    """A job with a list of ours, requeued to wait for its turn with its owner's request."""
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n')
    store = Store.open(tmp_path / "state")
    store.keep_steering("1", merge("", Steering(time=NOW - 60, was=OWNERS, wrote=OURS)))
    details = {"gpus": {}, "was": {}, "moves": 3, "save": "a", "restarts": 0, "fields": OWNERS}
    store.advance(store.begin("1", "move", "asked", NOW - 9, details), "requeued", NOW - 5)
    waits = job("1", restarts=1, submit_s=NOW - 5, eligible_s=NOW, partitions=("p100", "k80"))

    def end(answer):
        context = ActionContext(as_cluster(_Slurm(answer)), store, site, clock=lambda: NOW)
        with contextlib.suppress(_Died):
            advance(context, {"1": waits}, {}, NOW + 5)
        return decode(store.steerings(["1"])["1"])

    yield end
    store.close()


@pytest.mark.parametrize("answer", [_Died, SlurmError("no answer", retry=True)])
def test_a_stop_that_may_not_have_been_sent_forgets_no_owners_request(stopping, answer):
    """hadar retire gives back what is kept; the open move of the journal it does not finish."""
    assert stopping(answer).was == OWNERS
    update = ordinary(job("1", restarts=1), stopping(_Died), NOW, CONFIG)
    assert dict(update.fields).items() >= OWNERS.items()


def test_a_stop_that_slurm_took_or_refused_is_kept_as_it_is(stopping):
    refused = stopping(SlurmError("Invalid partition name specified"))
    assert (refused.was, refused.wrote, refused.moves) == (OWNERS, OURS, 3)


def test_a_stop_that_slurm_took_leaves_nothing_to_give_back(stopping):
    taken = stopping(None)
    assert (taken.was, taken.wrote, taken.moves) == ({}, {}, 3)
