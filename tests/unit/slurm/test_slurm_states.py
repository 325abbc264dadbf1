import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.job import JobState
from slurm_hadar.slurm import states


@pytest.mark.parametrize(
    ("names", "state"),
    [
        (["PENDING"], JobState.PENDING),
        (["RUNNING"], JobState.RUNNING),
        (["RUNNING", "CONFIGURING"], JobState.RUNNING),
        (["CONFIGURING"], JobState.RUNNING),
        (["COMPLETING", "PENDING"], JobState.COMPLETING),
        (["RUNNING", "COMPLETING"], JobState.COMPLETING),
        (["FAILED", "COMPLETING"], JobState.COMPLETING),
        (["REQUEUED", "PENDING"], JobState.COMPLETING),
        (["PENDING", "LAUNCH_FAILED"], JobState.PENDING),
        (["REQUEUE_HOLD"], JobState.PENDING),
        (["SPECIAL_EXIT", "PENDING"], JobState.PENDING),
        (["RUNNING", "STOPPED"], JobState.SUSPENDED),
        (["SUSPENDED"], JobState.SUSPENDED),
        (["OUT_OF_MEMORY"], JobState.FINISHED),
        (["CANCELLED", "REVOKED"], JobState.FINISHED),
        (["COMPLETED", "UPDATE_DB"], JobState.FINISHED),
        ([], JobState.UNKNOWN),
        (["LAUNCH_FAILED"], JobState.UNKNOWN),
    ],
)
def test_job_states(names: list[str], state: JobState) -> None:
    assert states.job_state(names) is state


@given(st.text(min_size=1).filter(lambda name: name.upper() not in states._JOB))
def test_a_state_of_a_later_release_is_never_taken_for_finished(name: str) -> None:
    known = states._JOB_REMARKS
    expected = JobState.FINISHED if name.upper() in known else JobState.UNKNOWN
    assert states.job_state(["COMPLETED", name]) is expected


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("IDLE", True),
        ("MIXED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE+PLANNED", True),
        ("IDLE-", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE~", True),
        ("IDLE#", True),
        ("IDLE%", False),
        ("IDLE*", False),
        ("MIXED*+DRAIN", False),
        ("DOWN*", False),
        ("DOWN+DRAIN+INVALID_REG", False),
        ("MIXED+DRAIN", False),
        ("IDLE+FAIL", False),
        ("IDLE+MAINTENANCE+RESERVED", False),
        ("IDLE$", False),
        ("IDLE@", False),
        ("ALLOCATED+REBOOT_ISSUED", False),
        ("FUTURE", False),
        ("UNKNOWN", False),
        ("IDLE+SOMETHING_NEW", False),
        ("", False),
    ],
)
def test_node_states(state: str, usable: bool) -> None:
    assert states.node_usable(state) is usable


@pytest.mark.parametrize(
    ("state", "asleep"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE~", True),
        ("MIXED+POWERING_UP", True),
        ("ALLOCATED#", True),
        ("IDLE", False),
        ("MIXED+CLOUD", False),
        ("IDLE+PLANNED", False),
        ("DOWN*", False),
    ],
)
def test_a_node_that_has_to_boot_first_is_asleep(state: str, asleep: bool) -> None:
    assert states.node_asleep(state) is asleep


def test_held_is_a_matter_of_waiting_jobs() -> None:
    assert states.held(JobState.PENDING, 0, "Priority")
    assert states.held(JobState.PENDING, 5, "JobHeldAdmin")
    assert not states.held(JobState.PENDING, 5, "BeginTime")
    assert not states.held(JobState.FINISHED, 0, "JobHeldUser")
