"""What we did to each job, where the job cannot carry it."""

import json
import os
from dataclasses import replace

import pytest
from hand_made import NOW, config, job
from missing import needs_root

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.steering import Steering, merge

OURS = Steering({"k80": 1}, {"k1": {"k80": 1}}, NOW, moves=1, was={"Features": "a b"})


def known(*ids):
    return {id_: job(id_) for id_ in ids}


@pytest.fixture
def site(tmp_path):
    (tmp_path / "ex").mkdir()
    return config(f'[site]\nexchange_dir = "{tmp_path}/ex"\n')


@pytest.fixture
def store(tmp_path):
    found = Store.open(tmp_path / "state")
    yield found
    found.close()


def test_it_outlives_the_state_file(site, store, tmp_path):
    steering_store.keep(site, store, "84_2", OURS)
    steering_store.keep(site, store, "5", Steering(time=NOW))
    assert [path.name for path in (tmp_path / "ex").iterdir()] == ["steer.84_2.json"]
    new = Store.open(tmp_path / "new")
    assert steering_store.recall(site, new, known("84_2", "5"), False) == {"84_2": OURS}
    assert steering_store.recall(site, new, known("5"), False) == {}
    new.close()


def test_the_later_word_holds_after_another_controller(site, store, tmp_path):
    steering_store.keep(site, store, "1", OURS)
    other = Store.open(tmp_path / "other")
    later = Steering({"v100": 1}, time=NOW + 60, was=OURS.was)
    steering_store.keep(site, other, "1", later)
    other.close()
    assert steering_store.recall(site, store, known("1"), False) == {"1": OURS}
    assert steering_store.recall(site, store, known("1"), True) == {"1": later}


def test_only_the_controllers_own_files_about_that_job_are_believed(site, store, tmp_path):
    path = tmp_path / "ex" / "steer.1.json"
    good = {"version": 1, "job": "1", "steering": merge("", OURS)}
    for text in ("{", json.dumps({**good, "job": "2"}), json.dumps({**good, "steering": 3})):
        path.write_text(text)
        assert (
            steering_store.recall(site, store, dict.fromkeys(("1", "1+0", "../1"), job()), True)
            == {}
        )
    path.write_text(json.dumps(good))
    assert steering_store.shared(site, "1") == OURS
    path.rename(tmp_path / "real")
    path.symlink_to(tmp_path / "real")
    assert steering_store.shared(site, "1") is None


def test_somebody_elses_word_is_nothing(site, tmp_path):
    needs_root("it gives a file to another user")
    path = tmp_path / "ex" / "steer.1.json"
    path.write_text(json.dumps({"version": 1, "job": "1", "steering": merge("", OURS)}))
    os.chown(path, 65534, 65534)
    assert steering_store.shared(site, "1") is None


def test_a_job_of_a_sandbox_carries_it_and_others_words_are_not_taken_for_it(site):
    one = job("1", admin_comment=merge("", OURS))
    assert steering_store.of_jobs(site, [one]) == {}
    sandbox = config('[site]\nrights = "sandbox"\n')
    assert steering_store.of_jobs(sandbox, [one]) == {"1": OURS}


def test_a_folder_that_cannot_be_written_costs_the_copy_only(store):
    away = config('[site]\nexchange_dir = "/nowhere"\n')
    steering_store.keep(away, store, "1", OURS)
    assert steering_store.recall(away, store, known("1"), True) == {"1": OURS}


def test_a_number_that_slurm_gives_anew_inherits_nothing(site, store):
    """Another user's job would get the request of one that had its number before."""
    steering_store.keep(site, store, "1", OURS)
    later = job("1", submit_s=NOW + 2 * 86400)
    for everything in (False, True):
        assert steering_store.recall(site, store, {"1": later}, everything) == {}
        # A requeue counts as a submission to Slurm.
        again = replace(later, restarts=1)
        assert steering_store.recall(site, store, {"1": again}, everything) == {"1": OURS}
    assert steering_store.of_jobs(site, [later]) == {}


def test_moves_that_the_journal_counted_count(site):
    ours = {"1": OURS, "2": replace(OURS, moves=5)}
    found = steering_store.with_moves(ours, {"1": 3, "2": 3, "9": 7})
    assert {job: steering.moves for job, steering in found.items()} == {"1": 3, "2": 5}


def left(known, shown, now=NOW):
    """Fields that are still ours in a waiting job."""
    operators = config('[site]\nrights = "operator"\n')
    return set(
        steering_store.without_foreign({"1": known}, {"1": shown}, operators, (), now)["1"].was
    )


@pytest.mark.parametrize(
    ("field", "was", "wrote", "ours", "others"),
    [
        (
            "ReqNodeList",
            "",
            "v[1-2]",
            {"required_nodes": ("v2", "v1")},
            {"required_nodes": ("k1",)},
        ),
        ("ReqNodeList", "v1", "", {}, {"required_nodes": ("v2",)}),
        (
            "TresPerNode",
            "gpu:1",
            "gpu:2",
            {"request": GpuRequest(per_node={UNTYPED: 2})},
            {"request": GpuRequest(per_node={UNTYPED: 4})},
        ),
        (
            "TresPerJob",
            "gpu:1",
            "gpu:2",
            {"request": GpuRequest(per_job={UNTYPED: 2})},
            {"request": GpuRequest(per_job={UNTYPED: 4})},
        ),
    ],
)
def test_a_field_that_others_changed_is_theirs(field, was, wrote, ours, others):
    known = Steering(time=NOW, was={field: was}, wrote={field: wrote})
    assert left(known, job(**ours)) == {field}
    assert left(known, job(**others)) == set()


def test_a_list_that_was_widened_at_its_deadline_is_still_the_controllers():
    known = Steering(
        time=NOW,
        was={"Partition": "v100,k80"},
        wrote={"Partition": "v100"},
        until=NOW + 60,
        ends=NOW + 90,
    )
    widened = job(partitions=("v100", "k80"))
    assert left(known, job(partitions=("v100",))) == {"Partition"}
    # Before the deadline nothing but a person does that.
    assert left(known, widened) == set()
    assert left(known, widened, NOW + 61) == {"Partition"}
    assert left(known, job(partitions=("k80",)), NOW + 61) == set()


def test_the_partitions_that_owners_asked_for_are_read_without_making_a_file(tmp_path):
    own = config(f'[site]\nexchange_dir = "{tmp_path}"\nstate_dir = "{tmp_path}/state"\n')
    assert steering_store.submitted_partitions(own) == {} and not (tmp_path / "state").exists()
    found = Store.open(tmp_path / "state")
    steering_store.keep(own, found, "1", Steering(was={"Partition": "gpu"}))
    steering_store.keep(own, found, "2", OURS)
    found.close()
    assert steering_store.submitted_partitions(own) == {"1": "gpu"}
