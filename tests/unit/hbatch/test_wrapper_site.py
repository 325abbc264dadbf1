"""The small JSON and the heartbeat: written by one side, read by the other."""

import json
import os
from pathlib import Path

import pytest
from missing import needs_root

from slurm_hadar import config, paths
from slurm_hadar.cli.wrapper_site import SiteError, controller_is_active, read_site, takes_lists
from slurm_hadar.controller.checks.check import wrapper_finding
from slurm_hadar.controller.checks.wrapper_site import SlurmNames, is_current, write_wrapper_site
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.profiles import specs
from slurm_hadar.profiles.table import shipped

TOML = """
[site]
mode = "act"
exchange_dir = "{folder}"
[slurm]
bin_dir = "/opt/slurm/bin"
conf = "/opt/slurm/etc/slurm.conf"
[gpu_types.v100]
memory_gb = 16
[gpu_types.a100]
feature = "ampere"
[gpu_types.k80]
tflops = 4.4
[partitions]
opt_in = ["gpu"]
[partitions.groups]
gpu = ["v100", "ampere", "k80"]
[wrapper]
quiet = true
default_types = "any"
"""


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "hadar.toml"
    path.write_text(TOML.format(folder=tmp_path))
    return path


def written(toml):
    path = write_wrapper_site(config.load(toml), toml)
    return read_site(str(path), str(toml))


@pytest.mark.parametrize("key", ["k" * 10_000, "a\nb\x1b[2J"])
def test_a_wrong_file_is_said_in_one_line(toml, key):
    path = write_wrapper_site(config.load(toml), toml)
    content = json.loads(path.read_text())
    content["types"][key] = 7
    path.write_text(json.dumps(content))
    with pytest.raises(SiteError, match=r"is no object|\.\.\.$") as found:
        read_site(str(path), str(toml))
    assert str(found.value).isprintable() and len(str(found.value)) <= 300


def test_what_is_written_is_read_back(toml, tmp_path):
    site = written(toml)
    assert site.acts and site.quiet and not site.stale
    assert site.exchange_dir == str(tmp_path)
    assert site.controller_uid == os.getuid()
    assert site.features == {"v100": "v100", "a100": "ampere", "k80": "k80"}
    assert site.memory_mb == {"v100": 16384, "a100": 0, "k80": 0}
    assert site.groups == {"gpu": {"v100": "v100", "ampere": "a100", "k80": "k80"}}
    assert site.speeds["resnet50"]["a100"] == 1.0
    # The shipped tables know no A100.
    assert set(site.known["resnet50"]) == {"v100", "k80"} and "" not in site.known
    assert site.opt_in == ("gpu",)
    assert site.default_types == "any"
    assert site.sbatch == "/opt/slurm/bin/sbatch"
    assert site.slurm_conf == "/opt/slurm/etc/slurm.conf"


def test_the_file_is_readable_by_all_and_alone(toml, tmp_path):
    path = write_wrapper_site(config.load(toml), toml)
    assert path == config.wrapper_path(toml) == tmp_path / "hadar.hbatch.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hadar.hbatch.json", "hadar.toml"]


@pytest.mark.parametrize(
    ("policy", "copies"),
    [("hadar", False), ("hadare", True), ("hare", True), ("timetable", True)],
)
def test_whether_the_policy_makes_copies(toml, policy, copies):
    toml.write_text(toml.read_text() + f'[controller]\npolicy = "{policy}"\n')
    assert written(toml).copies is copies


def test_a_missing_policy_is_a_finding_and_stops_no_write(toml):
    toml.write_text(toml.read_text() + '[controller]\npolicy = "gone.away:decide"\n')
    assert written(toml).copies


def test_a_folder_that_cannot_be_written_is_reported(toml):
    site = config.load(toml)
    with pytest.raises(UsageError, match="cannot be written"):
        write_wrapper_site(site, toml.parent / "gone" / "hadar.toml")


def test_a_toml_that_is_written_again_as_it_was_leaves_it_current(toml):
    """As a tool for the configuration of hosts does."""
    text = toml.read_text()
    path = write_wrapper_site(config.load(toml), toml)
    os.utime(toml, ns=(1, 1))
    assert not read_site(str(path), str(toml)).stale and is_current(config.load(toml), toml)
    toml.write_text(text.replace("act", "observe"))
    assert read_site(str(path), str(toml)).stale and not is_current(config.load(toml), toml)
    toml.write_text(text + "# a remark\n")
    assert read_site(str(path), str(toml)).stale and not is_current(config.load(toml), toml)


def test_a_changed_toml_makes_it_stale(toml):
    written(toml)
    toml.write_text(toml.read_text() + "\n")
    assert read_site(paths.wrapper_file(str(toml)), str(toml)).stale


def test_no_file_is_no_site(tmp_path):
    assert read_site(str(tmp_path / "none.json"), str(tmp_path / "none.toml")) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1}', "[" * 9999])
def test_a_damaged_file_is_an_error(tmp_path, text):
    path = tmp_path / "hadar.hbatch.json"
    path.write_text(text)
    with pytest.raises(SiteError):
        read_site(str(path), str(tmp_path / "hadar.toml"))


@pytest.mark.parametrize("key", ["mode", "types", "controller_uid", "opt_in", "sbatch"])
@pytest.mark.parametrize("value", [None, True, [1], -1])
def test_a_field_of_the_wrong_kind_is_an_error(toml, key, value):
    path = write_wrapper_site(config.load(toml), toml)
    source = json.loads(path.read_text())
    path.write_text(json.dumps({**source, key: value}))
    with pytest.raises(SiteError):
        read_site(str(path), str(toml))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("groups", []),
        ("groups", {"gpu": ["v100"]}),
        ("groups", {"gpu": {"v100": 1}}),
        ("groups", {"gpu": {"h100": "h100"}}),
        ("speeds", 1),
        ("copies", 1),
        ("known", 1),
        ("known", {"resnet50": 1}),
        ("speeds", {"": [1.0]}),
        ("speeds", {"": {"v100": "fast"}}),
        ("speeds", {"": {"v100": -1}}),
        ("batches", {"lm": [1.0]}),
        ("batches", {"lm": {"16": 1.0}}),
        ("batches", {"lm": {"many": {"v100": 1.0}}}),
        ("batches", {"lm": {"0": {"v100": 1.0}}}),
    ],
)
def test_wrong_groups_and_speeds_are_an_error(toml, key, value):
    path = write_wrapper_site(config.load(toml), toml)
    source = json.loads(path.read_text())
    path.write_text(json.dumps({**source, key: value}))
    with pytest.raises(SiteError):
        read_site(str(path), str(toml))


def test_a_file_of_an_earlier_release_is_read_and_is_not_current(toml):
    path = write_wrapper_site(config.load(toml), toml)
    source = json.loads(path.read_text())
    assert is_current(config.load(toml), toml)
    del source["groups"], source["speeds"], source["batches"], source["copies"]
    path.write_text(json.dumps({**source, "lease_s": 300, "steer": ["v100"]}))
    site = read_site(str(path), str(toml))
    assert (site.groups, site.speeds, site.stale) == ({}, {}, False)
    assert site.batches == {} and site.copies
    assert not is_current(config.load(toml), toml)


GROUPS = """
[gpu_types.v100]
[gpu_types.a100]
feature = "ampere"
[gpu_types.a30]
feature = "both"
[gpu_types.a40]
feature = "both"
[partitions.groups]
"""


@pytest.mark.parametrize(
    ("group", "types"),
    [
        ('["v100", "a100"]', {"v100": "v100", "a100": "a100"}),
        ('["ampere", "v100"]', {"ampere": "a100", "v100": "v100"}),
        ('["a30"]', {"a30": "a30"}),
        # Two types have this feature.
        ('["v100", "both"]', None),
        ('["v100", "gpu_v100"]', None),
        ("[]", None),
    ],
)
def test_a_member_is_named_like_its_type_or_feature(group, types):
    site = config.parse(GROUPS + f"gpu = {group}", "test")
    assert config.group_types(site) == ({"gpu": types} if types else {})


def test_speeds_are_of_the_tables_over_the_fastest_and_by_data_sheet_for_other_models(toml):
    speeds = written(toml).speeds
    rate = {row[1]: row[4] for row in shipped().rows if row[0] == "CycleGAN" and row[2] == 1}
    assert {"", "resnet18", "recommendation", "cyclegan"} < set(speeds)
    found = speeds["cyclegan"]
    assert found["k80"] / found["v100"] == pytest.approx(rate["k80"] / rate["v100"], rel=0.01)
    sheet = specs.relative_speed(4.4, specs.lookup("a100").tflops)
    assert speeds[""]["k80"] == pytest.approx(sheet, rel=0.01)
    assert {max(one.values()) for one in speeds.values()} == {1.0}


def test_speeds_are_of_each_batch_of_the_tables_too(toml):
    found = written(toml).batches["transformer"]
    rate = {(row[1], row[3]): row[4] for row in shipped().rows
            if row[0] == "Transformer" and row[2] == 1}  # fmt: skip
    # With the middle one the speeds are those without a batch.
    batches = sorted({batch for _, batch in rate})
    assert set(found) == {*batches} - {batches[(len(batches) - 1) // 2]}
    # The shipped tables know no A100.
    assert all(set(row) == {"v100", "k80"} for row in found.values())
    assert {row["v100"] for row in found.values()} == {written(toml).speeds["transformer"]["v100"]}
    for batch, row in found.items():
        part = rate["k80", batch] / rate["v100", batch]
        assert row["k80"] / row["v100"] == pytest.approx(part, rel=0.01)


def own_table(toml, rows):
    table = toml.parent / "own.json"
    rows = [[*row, None] for row in rows]
    table.write_text(json.dumps({"version": 1, "source": "own", "rows": rows}))
    toml.write_text(toml.read_text() + f'[profiles]\ntables = ["{table}"]\n')


def test_a_batch_has_the_types_only_that_a_table_has_with_it(toml):
    rows = [["Mine", "k80", 1, 16, 10.0], ["Mine", "v100", 1, 16, 80.0]]
    own_table(toml, [*rows, ["Mine", "v100", 1, 256, 100.0], ["Mine", "k80", 1, 8, 5.0],
                     ["Mine", "v100", 1, 4, 60.0]])  # fmt: skip
    site = written(toml)
    speeds = site.speeds["mine"]
    assert set(site.known["mine"]) == {"v100", "k80"}
    found = site.batches["mine"]
    assert found[256] == {"v100": speeds["v100"]}
    assert found[16]["k80"] == pytest.approx(found[16]["v100"] / 8, rel=1e-3)
    # The only one with its batch is not the fastest of all by that.
    assert found[8] == {"k80": speeds["k80"]}


def test_speeds_by_batch_are_left_out_where_hbatch_could_not_read_the_file(toml):
    rows = [
        [f"Model {n}", kind, 1, batch, float(1 + (n * batch * len(kind)) % 97)]
        for n in range(200)
        for kind in ("v100", "k80")
        for batch in range(1, 101)
    ]
    own_table(toml, rows)
    site = config.load(toml)
    path = write_wrapper_site(site, toml)
    assert path.stat().st_size <= 1 << 20
    found = read_site(str(path), str(toml))
    assert found.batches == {} and len(found.speeds) > 200
    assert is_current(site, toml)
    names = SlurmNames()
    finding = wrapper_finding(site, toml, names)
    assert finding.level == "warning" and "1 MiB" in finding.what and "batch" in finding.what
    table = toml.parent / "own.json"
    table.write_text(json.dumps({**json.loads(table.read_text()), "rows": rows_of_one(rows)}))
    assert not is_current(site, toml)
    write_wrapper_site(site, toml)
    assert wrapper_finding(site, toml, names).level == "ok"


def test_a_change_of_slurm_alone_is_not_called_one_of_the_configuration(toml):
    site = config.load(toml)
    write_wrapper_site(site, toml, SlurmNames("c", "gpu"))
    assert wrapper_finding(site, toml, SlurmNames("c", "gpu")).level == "ok"
    other = wrapper_finding(site, toml, SlurmNames("c", "new"))
    assert "does not fit what Slurm says now (" in other.what
    assert other.cure == "hadar check --write"
    toml.write_text(toml.read_text().replace("quiet = true", "quiet = false"))
    changed = wrapper_finding(config.load(toml), toml, SlurmNames("c", "new"))
    assert "does not fit the configuration: hbatch" in changed.what


def rows_of_one(rows):
    return [[*row, None] for row in rows if row[0] == "Model 7"]


def test_a_batch_with_which_a_type_cannot_run_has_none_of_its_speed(toml):
    rows = [["Mine", "k80", 1, 64, 10.0], ["Mine", "k80", 1, 128, 0.0]]
    own_table(toml, [*rows, ["Mine", "v100", 1, 128, 50.0], ["Mine", "v100", 1, 512, 0.0]])
    found = written(toml).batches["mine"]
    assert found[128]["k80"] == 0.0 < found[128]["v100"] and 512 not in found


def test_a_sites_own_table_counts(toml, tmp_path):
    rows = [["Mine", "v100", 1, 8, 10.0, None], ["Mine", "a100", 1, 8, 5.0, None]]
    table = tmp_path / "own.json"
    table.write_text(json.dumps({"version": 1, "source": "own", "rows": rows}))
    toml.write_text(toml.read_text() + f'[profiles]\ntables = ["{table}"]\n')
    found = written(toml).speeds["mine"]
    assert (found["v100"], found["a100"]) == (1.0, 0.5) and found["k80"] < 1


def test_a_site_without_groups_has_no_speeds_in_its_file(toml):
    toml.write_text(toml.read_text().replace('"k80"]', '"slow"]'))
    site = written(toml)
    assert (site.groups, site.speeds) == ({}, {})


def test_the_file_stays_small(toml):
    assert write_wrapper_site(config.load(toml), toml).stat().st_size < 4096


def heartbeat_at(folder):
    return json.loads((folder / "heartbeat.json").read_text())["time"]


@pytest.mark.parametrize(
    ("age", "acts"), [(0, True), (209, True), (211, False), (-209, True), (-211, False)]
)
def test_a_heartbeat_is_believed_for_three_intervals_and_a_half_minute(toml, tmp_path, age, acts):
    site = written(toml)
    write_heartbeat(tmp_path, "act", 60.0)
    assert controller_is_active(site, heartbeat_at(tmp_path) + age) is acts


@pytest.mark.parametrize(
    ("room", "takes"), [(None, True), (True, True), (False, False), ("no", True)]
)
def test_a_controller_says_whether_it_takes_more_lists(toml, tmp_path, room, takes):
    site = written(toml)
    write_heartbeat(tmp_path, "act", 60.0)
    path = tmp_path / "heartbeat.json"
    beat = {k: v for k, v in json.loads(path.read_text()).items() if k != "room"}
    path.write_text(json.dumps(beat if room is None else {**beat, "room": room}))
    now = heartbeat_at(tmp_path)
    assert takes_lists(site, now) is takes
    assert controller_is_active(site, now)
    assert not takes_lists(site, now + 300)


def test_an_observing_controller_does_not_act(toml, tmp_path):
    site = written(toml)
    write_heartbeat(tmp_path, "observe", 60.0)
    assert not controller_is_active(site, heartbeat_at(tmp_path))
    assert not takes_lists(site, heartbeat_at(tmp_path))


def test_somebody_elses_heartbeat_is_not_believed(toml, tmp_path):
    site = written(toml)
    site.controller_uid += 1
    write_heartbeat(tmp_path, "act", 60.0)
    assert not controller_is_active(site, heartbeat_at(tmp_path))


def test_links_pipes_and_rubbish_are_not_believed(toml, tmp_path):
    site = written(toml)
    path = tmp_path / "heartbeat.json"
    assert not controller_is_active(site, 0.0)
    write_heartbeat(tmp_path, "act", 60.0)
    now = heartbeat_at(tmp_path)
    path.rename(tmp_path / "other.json")
    path.symlink_to(tmp_path / "other.json")
    assert not controller_is_active(site, now)
    path.unlink()
    os.mkfifo(path)
    assert not controller_is_active(site, now)
    path.unlink()
    path.write_text('{"version": 1, "mode": "act", "time": "now", "interval_s": 60}')
    assert not controller_is_active(site, now)


def test_the_configuration_is_looked_for_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.config_file({}) == "/etc/slurm-hadar/hadar.toml"
    own = tmp_path / ".config/slurm-hadar/hadar.toml"
    own.parent.mkdir(parents=True)
    own.touch()
    assert paths.config_file({}) == str(own)
    assert paths.config_file({"HADAR_CONFIG": "/a.toml"}) == "/a.toml"


def root_says(folder, uid):
    system = folder / "etc" / "hadar.toml"
    system.parent.mkdir(exist_ok=True)
    Path(paths.wrapper_file(str(system))).write_text(json.dumps({"controller_uid": uid}))
    return str(system)


def opened(path, system):
    with os.fdopen(paths.opened(str(path), system), "rb") as stream:
        return stream.read()


def test_a_configuration_is_believed_from_root_the_controllers_user_and_the_caller(tmp_path):
    needs_root("it gives a file to other users")
    system, path = root_says(tmp_path, 4321), tmp_path / "hadar.toml"
    path.write_text("x")
    for owner in (0, 4321):
        os.chown(path, owner, -1)
        assert opened(path, system) == b"x"
    os.chown(path, 65534, -1)
    with pytest.raises(PermissionError) as caught:
        opened(path, system)
    assert "it belongs to nobody" in caught.value.strerror
    # What the file beside root's says is believed where that is root's too.
    os.chown(paths.wrapper_file(system), 65534, -1)
    os.chown(path, 4321, -1)
    with pytest.raises(PermissionError):
        opened(path, system)
    os.chown(path, 0, -1)
    path.chmod(0o666)
    with pytest.raises(PermissionError) as caught:
        opened(path, system)
    assert "every user may change it" in caught.value.strerror


def test_what_is_no_file_is_no_configuration_and_nothing_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(PermissionError) as caught:
        opened(tmp_path / "pipe.toml", "/none")
    assert "not a regular file" in caught.value.strerror


def test_a_group_that_slurm_shows_otherwise_is_not_written(toml):
    site = config.load(toml)
    names = SlurmNames("c", "gpu", unlike=("gpu",))
    path = write_wrapper_site(site, toml, names)
    assert read_site(str(path), str(toml)).groups == {}
    assert is_current(site, toml, names)
    # Slurm does not answer: what it said stands.
    assert is_current(site, toml) and is_current(site, toml, SlurmNames())
    assert not is_current(site, toml, SlurmNames("c", "gpu"))
