"""``hadar check`` on the policy's own settings, and on a folder that nobody may enter."""

import pytest
from hand_made import config

from slurm_hadar import policies
from slurm_hadar.controller.checks import check, check_folders, check_options


def site(policy, *lines):
    return config(
        "\n".join(["[controller]", f'policy = "{policy}"', "[controller.options]", *lines])
    )


def option_findings(own):
    return check_options.option_findings(own, policies.find(own.controller.policy))


@pytest.mark.parametrize("policy", policies.names())
def test_no_policy_is_at_fault_without_options(policy):
    assert list(option_findings(site(policy))) == []


@pytest.mark.parametrize("policy", policies.names())
def test_an_option_that_no_policy_reads_is_warned_of(policy):
    (found,) = option_findings(site(policy, "no_such_option = 3"))
    assert found.level == "warning" and "no_such_option" in found.what and found.cure


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("hadar", 'utility = "makespan"'),
        ("hadar", "beam = 2"),
        ("hadare", "averaging = 0.1"),
        ("hadare", "beam = 2"),
        ("timetable", "buckets = 6"),
        ("gavel_las", "reset_s = 100"),
        ("tiresias", 'queues = "3600"'),
    ],
)
def test_a_policys_own_option_is_known_and_anothers_is_not(policy, line):
    assert list(option_findings(site(policy, line))) == []
    (found,) = option_findings(site("fifo", line))
    assert found.level == "warning" and line.split()[0] in found.what


def test_a_name_that_is_close_is_proposed():
    (found,) = option_findings(site("hadar", "pacience = 0.5"))
    assert "patience" in found.cure


@pytest.mark.parametrize(
    ("policy", "line"),
    [("hadar", 'utility = "luck"'), ("timetable", "buckets = 1"), ("gavel_las", "reset_s = -1")],
)
def test_a_value_that_the_policy_refuses_is_a_problem(policy, line):
    (found,) = option_findings(site(policy, line))
    assert found.level == "problem" and line.split()[0] in found.what


def test_a_policy_that_there_is_not_is_one_problem():
    found, *_ = check._names(site("luck", "x = 1"))
    assert found.level == "problem" and "there is no policy 'luck'" in found.what


def test_options_of_a_wrapped_policy_count_as_well():
    wraps = 'wrap = "hadar"'
    assert list(option_findings(site("synergy_tune", wraps, "beam = 2"))) == []
    (found,) = option_findings(site("synergy_tune", wraps, "beam = -2"))
    assert found.level == "problem" and "beam" in found.what
    (found,) = option_findings(site("synergy_tune", 'wrap = "synergy_opt"'))
    assert found.level == "problem" and "wrapped in itself" in found.what
    (found,) = option_findings(site("synergy_tune", 'wrap = "luck"'))
    assert found.level == "problem" and "luck" in found.what


def test_the_check_tells_it(monkeypatch):
    found = list(check._names(site("hadar", "no_such_option = 3")))
    assert any("no_such_option" in one.what for one in found)


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o600, 0o300])
def test_an_exchange_folder_that_its_owner_may_not_use_is_a_problem(mode, tmp_path):
    folder = tmp_path / "exchange"
    folder.mkdir()
    folder.chmod(mode)
    own = config(f'[site]\nrights = "user"\nexchange_dir = "{folder}"\n')
    try:
        found = check_folders.exchange_finding(own, folder)
    finally:
        folder.chmod(0o700)
    assert found.level == "problem" and f"{mode:o}" in found.what and "chmod" in found.cure
    assert check_folders.exchange_finding(own, folder).level == "ok"
