"""What a job's owner types into scontrol while the job is being moved holds, on a real Slurm;
and a job stays that others have left no place for until it has saved."""

import time

import pytest
from dictated import Dictated
from slurms import need
from trainings import moves_of
from typed import hadar

from slurm_hadar.controller.actuation.move_steps import acknowledged
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.progress import read_all_progress

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    need(None)
    guards = {"min_between_moves_s": 0.0, "max_moves_per_tick": 20}
    found = Dictated(tmp_path_factory.mktemp("owners"), {"guards": guards})
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _ends_whole(site):
    yield
    site.want = {}
    jobs = site.slurm.read_jobs()
    site.ended(*(job.id for job in jobs if job.state is not JobState.FINISHED))


@pytest.fixture
def moving(site):
    """A job with hbatch's list of partitions, right after the requeue of its move, the type on
    which it ran, that to which it goes, and the controller."""
    site.until(site.all_nodes_answer)
    # hbatch lists partitions by the prices of a tick. None sees the job wait.
    site.controller.tick()
    id_ = site.submit(linger=2.0, words=["-p", "gpu"])
    site.until(lambda: site.trains(id_))
    (here,) = site.where(id_)
    to = next(kind for kind in ("v100", "p100", "k80") if kind != here)
    site.want = {id_: {to: 1}}
    careful = site.another(site.with_settings(moving={"settle_s": 0.0}))
    site.until(lambda: careful.tick() and site.job(id_).restarts == 1)
    return id_, here, to, careful


def typed(site, id_, change):
    """The owner's command. After it slurmctld tells what it made of it."""

    def taken():
        # 24.11 refuses it at the moment in which the job has left its node.
        try:
            site.box.run("scontrol", "update", f"JobId={id_}", change)
        except SlurmError as error:
            assert "temporarily unavailable" in str(error)
            return False
        return True

    site.until(taken)
    return site.job(id_)


def ended(site, id_, careful):
    site.until(lambda: careful.tick() and not careful.store.open_entries())
    (move,) = moves_of(careful.store, id_)
    # A policy plans for the partitions that the job has.
    site.want = {}
    return move.outcome


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.PENDING])
def test_a_partition_set_during_a_move_stays(site, moving, state):
    id_, here, to, careful = moving
    site.until(lambda: site.job(id_).state is state)
    third = next(kind for kind in ("v100", "p100", "k80") if kind not in (here, to))
    assert len(site.job(id_).partitions) == 3, "hbatch wrote its list"
    assert typed(site, id_, f"Partition={third}").partitions == (third,)
    assert ended(site, id_, careful) == "Partition was changed while it moved, and stays so"
    site.until(lambda: careful.tick() and site.trains(id_, 1))
    assert site.where(id_) == {third}
    assert site.unharmed(id_).restarts == 1


def test_the_partition_that_it_leaves_stays_too(site, moving):
    id_, here, _, careful = moving
    typed(site, id_, f"Partition={here}")
    assert ended(site, id_, careful) == "Partition was changed while it moved, and stays so"
    site.until(lambda: careful.tick() and site.trains(id_, 1))
    assert site.where(id_) == {here}


@pytest.fixture
def narrowed(site):
    """A job whose owner narrows hbatch's list to one type before a tick sees it wait; the type."""
    site.until(site.all_nodes_answer)
    site.controller.tick()
    id_ = site.submit(words=["-p", "gpu", "--begin=now+1hour"])
    kind = site.job(id_).partitions[-1]
    assert typed(site, id_, f"Partition={kind}").partitions == (kind,)
    return id_, kind


def test_a_list_that_no_tick_saw_is_its_owners_when_the_job_moves(site, narrowed):
    id_, here = narrowed
    typed(site, id_, "StartTime=now")
    site.until(lambda: site.trains(id_))
    assert site.where(id_) == {here}
    other = next(kind for kind in ("v100", "p100", "k80") if kind != here)
    site.want = {id_: {other: 1}}
    careful = site.another(site.with_settings(moving={"settle_s": 0.0}))
    site.until(lambda: careful.tick() and site.job(id_).restarts == 1)
    assert ended(site, id_, careful) == "Partition was changed while it moved, and stays so"
    site.until(lambda: careful.tick() and site.trains(id_, 1))
    assert site.where(id_) == {here}


def test_a_job_moves_in_the_list_that_its_owner_reordered_before_the_first_tick(site):
    site.until(site.all_nodes_answer)
    site.controller.tick()
    id_ = site.submit(words=["-p", "gpu", "--begin=now+1hour"])
    names = site.job(id_).partitions[::-1]
    typed(site, id_, f"Partition={','.join(names)}")
    site.controller.tick()
    assert site.job(id_).partitions == names
    typed(site, id_, "StartTime=now")
    site.until(lambda: site.trains(id_))
    assert site.where(id_) == {names[0]}
    site.want = {id_: {names[1]: 1}}
    careful = site.another(site.with_settings(moving={"settle_s": 0.0}))
    site.until(lambda: careful.tick() and site.job(id_).restarts == 1)
    assert ended(site, id_, careful) == "moved"
    site.until(lambda: careful.tick() and site.trains(id_, 1))
    assert site.where(id_) == {names[1]}


def test_a_list_that_no_tick_saw_is_its_owners_after_an_optout(site, narrowed):
    id_, kind = narrowed
    assert hadar(site.env, "optout", id_).returncode == 0
    assert site.job(id_).opted_out and site.job(id_).partitions == (kind,)


def test_hbatchs_list_is_what_the_owner_asked_for_after_an_optout(site):
    site.controller.tick()
    id_ = site.submit(words=["-p", "gpu", "--begin=now+1hour"])
    assert len(site.job(id_).partitions) == 3, "hbatch wrote its list"
    assert hadar(site.env, "optout", id_).returncode == 0
    assert site.job(id_).opted_out and site.job(id_).partitions == ("gpu",)


def test_a_moved_job_that_depends_on_another_since_keeps_its_types(site):
    """Its list alone says them: with its owner's partition Slurm would start it on any."""
    site.until(site.all_nodes_answer)
    site.controller.tick()
    id_ = site.submit(declared="types=v100,k80", words=["-p", "gpu"])
    assert {*site.job(id_).declaration.listed} == {"v100", "k80"} and not site.job(id_).features
    site.until(lambda: site.patient_tick() and site.trains(id_))
    (here,) = site.where(id_)
    site.moves(id_, "k80" if here == "v100" else "v100")
    first = site.plain("--begin=now+1hour")
    # The rest of its two types is taken.
    others = [site.plain("-p", kind) for kind in ("v100", "k80") for _ in range(8)]
    site.box.run("scontrol", "requeue", id_)
    typed(site, id_, f"Dependency=afterany:{first}")
    site.until(lambda: site.job(id_).state is JobState.PENDING)
    # Else Slurm has it wait for a minute and a half, wherever it may start. Not in the second of
    # the requeue, in which it would fail.
    typed(site, id_, "StartTime=now+2")
    for _ in range(3):
        site.patient_tick()
        assert {*site.job(id_).partitions} == {"v100", "k80"}
    site.slurm.cancel([first])
    time.sleep(5.0)
    assert not site.where(id_) & {"p100"}
    site.ended(*others)
    site.until(lambda: site.patient_tick() and site.trains(id_, 2))
    assert site.where(id_) <= {"v100", "k80"}
    assert hadar(site.env, "optout", id_).returncode == 0


@pytest.mark.parametrize(
    ("declared", "words"), [("types=any", ["-C", "v100|k80"]), ("types=v100,k80", [])]
)
def test_features_that_its_owner_sets_while_it_waits_hold(site, declared, words):
    site.until(site.all_nodes_answer)
    site.controller.tick()
    id_ = site.submit(declared=declared, words=["-p", "gpu", "-H", *words])
    typed(site, id_, "Features=k80")
    site.slurm.release(id_)
    site.until(lambda: site.trains(id_))
    assert site.where(id_) == {"k80"}
    # No policy plans that for it: what a move writes is what counts here.
    site.want = {id_: {"v100": 1}}
    careful = site.another(site.with_settings(moving={"settle_s": 0.0}))
    site.until(lambda: careful.tick() and site.job(id_).restarts == 1)
    site.want = {}
    site.until(lambda: careful.tick() and site.trains(id_, 1))
    assert site.job(id_).features == "k80" and site.where(id_) == {"k80"}


def test_features_that_its_owner_sets_and_clears_again_open_no_excluded_type(site):
    """Slurm starts it nowhere meanwhile: the last partition of its list has no node with them."""
    site.until(site.all_nodes_answer)
    others = [site.plain("-p", kind) for kind in ("v100", "k80") for _ in range(2)]
    site.controller.tick()
    id_ = site.submit(declared="types=v100,k80", words=["-p", "gpu"])
    assert {*site.job(id_).partitions} == {"v100", "k80"}
    first = site.job(id_).partitions[0]
    typed(site, id_, f"Features={first}")
    site.until(lambda: site.job(id_).reason == "BadConstraints")
    site.until(lambda: site.patient_tick() and site.job(id_).partitions == (first,))
    site.until(lambda: site.job(id_).reason != "BadConstraints" and not site.job(id_).held)
    assert site.job(id_).features == first
    typed(site, id_, "Features=")
    site.until(lambda: site.patient_tick() and {*site.job(id_).partitions} == {"v100", "k80"})
    time.sleep(3.0)
    assert not site.where(id_), "a p100 is idle, and excluded"
    site.ended(*others)
    site.until(lambda: site.patient_tick() and site.trains(id_))
    assert site.where(id_) <= {"v100", "k80"}


def test_partitions_that_its_owner_sets_open_no_excluded_type(site):
    site.until(site.all_nodes_answer)
    others = [site.plain("-p", kind) for kind in ("v100", "k80") for _ in range(2)]
    site.controller.tick()
    id_ = site.submit(declared="types=v100,k80", words=["-p", "gpu", "-H"])
    typed(site, id_, "Partition=gpu")
    site.until(lambda: site.patient_tick() and site.job(id_).features)
    assert site.job(id_).held and {*site.job(id_).features.split("|")} == {"v100", "k80"}
    site.slurm.release(id_)
    for _ in range(3):
        site.patient_tick()
        time.sleep(1.0)
    assert not site.where(id_) and site.job(id_).partitions == ("gpu",)
    typed(site, id_, "Partition=k80,v100")
    site.until(lambda: site.patient_tick() and not site.job(id_).features)
    # Held, as before: until a tick has seen that, Slurm may start it on the p100, which is idle.
    site.box.run("scontrol", "hold", id_)
    typed(site, id_, "Partition=gpu")
    site.until(lambda: site.patient_tick() and site.job(id_).features)
    site.slurm.release(id_)
    assert hadar(site.env, "optout", id_).returncode == 0
    assert {*site.job(id_).features.split("|")} == {"v100", "k80"}
    site.ended(*others)
    site.until(lambda: site.where(id_))
    assert site.where(id_) <= {"v100", "k80"}


def test_a_begin_time_set_during_a_move_stays(site, moving):
    id_, _, _, careful = moving
    site.until(lambda: site.job(id_).state is JobState.PENDING)
    begins_s = typed(site, id_, "StartTime=now+30minutes").eligible_s
    assert begins_s > time.time() + 1700
    assert ended(site, id_, careful) == "its begin time was changed while it moved, and stays so"
    for _ in range(3):
        careful.tick()
        time.sleep(1.0)
    waits = site.unharmed(id_)
    assert waits.state is JobState.PENDING and waits.eligible_s == begins_s
    # Once it may begin it is steered as any other.
    typed(site, id_, "StartTime=now+2")
    site.until(lambda: careful.tick() and site.trains(id_, 1))


def test_a_job_that_nobody_changed_moves(site, moving):
    id_, _, to, careful = moving
    assert ended(site, id_, careful) == "moved"
    site.until(lambda: careful.tick() and site.trains(id_, 1))
    assert site.where(id_) == {to}


@pytest.fixture
def saved(site):
    """A job that runs and has saved for a move some time ago, that to which it goes, and the
    controller."""
    site.until(site.all_nodes_answer)
    id_ = site.submit(linger=2.0, words=["-p", "gpu"])
    site.until(lambda: site.trains(id_))
    (here,) = site.where(id_)
    to = next(kind for kind in ("v100", "p100", "k80") if kind != here)
    site.want = {id_: {to: 1}}
    careful = site.another(site.with_settings(moving={"settle_s": 0.0}))
    careful.tick()
    (entry,) = careful.store.open_entries()
    folder, owners = site.config.site.exchange_dir, {id_: site.job(id_).uid}
    site.until(lambda: acknowledged(entry, read_all_progress(folder, owners).get(id_)))
    time.sleep(6.0)
    yield id_, to, careful
    site.box.run("scancel", "--name=taker")


def dropped(site, id_, careful, why, held=False):
    careful.tick()
    if held:
        site.box.run("scontrol", "release", id_)
    (move,) = moves_of(careful.store, id_)
    assert move.outcome.startswith("it stays where it is: ") and why in move.outcome
    assert site.unharmed(id_).restarts == 0
    assert site.job(id_).state is JobState.RUNNING


def test_a_job_whose_place_was_taken_while_it_saved_stays(site, saved):
    id_, to, careful = saved
    words = ("--parsable", "-J", "taker", "-p", to, "--gres=gpu:1", "-o", "/dev/null")

    def waits():
        return site.box.run("sbatch", *words, "--wrap", "sleep 300").strip()

    taken = [waits() for _ in range(5)]
    site.until(lambda: site.job(taken[-1]).reason in ("Resources", "Priority"))
    dropped(site, id_, careful, "")


def test_a_job_that_was_held_while_it_saved_stays(site, saved):
    id_, _, careful = saved
    site.box.run("scontrol", "hold", id_)
    dropped(site, id_, careful, "it is held", held=True)


def test_a_job_whose_place_is_drained_while_it_saved_stays(site, saved):
    id_, to, careful = saved
    nodes = [node.name for node in site.slurm.read_nodes() if to in node.gpus]
    site.box.run("scontrol", "update", f"NodeName={','.join(nodes)}", "State=DRAIN", "Reason=test")
    try:
        dropped(site, id_, careful, "not free yet")
    finally:
        site.box.run("scontrol", "update", f"NodeName={','.join(nodes)}", "State=RESUME")


def test_a_job_that_saved_a_while_ago_is_moved(site, saved):
    id_, to, careful = saved
    site.until(lambda: careful.tick() and site.job(id_).restarts == 1)
    assert ended(site, id_, careful) == "moved"
    site.until(lambda: careful.tick() and site.trains(id_, 1))
    assert site.where(id_) == {to}
