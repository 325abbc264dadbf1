"""What every back end must do, on a running Slurm.

Runs with the commands on the Slurm of PATH, and with the commands and PySlurm on the Slurm below
``$HADAR_TEST_SLURM`` where that is set (``/usr``: the Slurm of PATH with a PySlurm that fits it).
"""

import importlib.util
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
from missing import missing

from slurm_hadar import config
from slurm_hadar.domain.declaration import Declaration, merge
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.cluster import Cluster, Target, Update, open_cluster
from slurm_hadar.slurm.minutes import Minutes
from slurm_hadar.slurm.times import at_once, begin_time, startable_s

pytestmark = pytest.mark.live

LAYOUT = Layout(
    (
        NodeGroup("v", 2, "v100", 4),
        NodeGroup("k", 1, "k80", 4),
        NodeGroup("m", 1, "p100", 2, more={"t4": 2}),
    )
)
SLEEP = "#!/bin/bash\nsleep 120\n"
QUIET = ("-o", "/dev/null", "-t", "10")
LATER = (*QUIET, "--begin=now+600")
PYSLURM = ("pyslurm", True)
HOSTILE = 'it\'s "q" \\n [x] a=b JobId=1 $(id) `id` ;|& é %20 #c'


def _serve(pipe: Connection, settings: config.Slurm) -> None:
    cluster = open_cluster(settings)
    while True:
        name, arguments, keywords = pipe.recv()
        if name == "stop":
            return
        try:
            found = getattr(cluster, name)
            pipe.send((found(*arguments, **keywords) if callable(found) else found, None))
        except HadarError as error:
            pipe.send((None, error))


class InOwnProcess:
    """A cluster in a process of its own: PySlurm binds a process to one slurm.conf."""

    def __init__(self, settings: config.Slurm) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, settings), daemon=True)
        self._process.start()

    def __getattr__(self, name: str) -> Any:
        if name in ("backend", "why", "queries", "notes", "slurm_version"):
            return self._ask(name)
        return lambda *arguments, **keywords: self._ask(name, *arguments, **keywords)

    def _ask(self, name: str, *arguments: object, **keywords: object) -> Any:
        self._pipe.send((name, arguments, keywords))
        assert self._pipe.poll(120), "the process with PySlurm does not answer"
        result, error = self._pipe.recv()
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        self._pipe.send(("stop", (), {}))
        self._process.join(10)
        self._process.kill()
        self._process.join()


@dataclass(frozen=True)
class Site:
    box: Sandbox
    cluster: Cluster
    plain: Cluster
    """The commands' back end on the same Slurm."""

    def submit(self, *options: str, script: str = SLEEP) -> str:
        env = {**os.environ, **self.box.env}
        return self.cluster.submit(script, [*QUIET, *options], env)

    def job(self, job_id: str) -> Job:
        (found,) = self.cluster.read_jobs([job_id])
        return found

    def until(
        self,
        job_id: str,
        reached: Callable[[Job], bool],
        seconds: float = 90,
        every_s: float = 0.2,
    ) -> Job:
        end = time.monotonic() + seconds
        while not reached(job := self.job(job_id)):
            assert time.monotonic() < end, f"not reached within {seconds} s: {job}"
            time.sleep(every_s)
        return job

    def running(self, job_id: str) -> Job:
        return self.until(job_id, lambda job: job.state is JobState.RUNNING)

    def update(self, job_id: str, **values: str) -> None:
        assert self.cluster.apply([Update(job_id, values)]) == [None]


@pytest.fixture(
    scope="module",
    params=[PYSLURM, ("commands", False), ("commands", True)],
    ids=["pyslurm-prefix", "commands-path", "commands-prefix"],
)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    backend, second = request.param
    named = os.environ.get("HADAR_TEST_SLURM")
    prefix = Path(named) if second and named else None
    if second and prefix is None:
        pytest.skip("HADAR_TEST_SLURM names no second Slurm")
    if prefix is None and not all(map(shutil.which, ("squeue", "sbatch", "munged"))):
        missing("Slurm and munge are not on PATH")
    if backend == "pyslurm" and importlib.util.find_spec("pyslurm") is None:
        missing("PySlurm is not installed in this environment")
    folder = tmp_path_factory.mktemp("contract")
    with Sandbox.up(folder / "box", LAYOUT, prefix, cred_expire_s=30, kill_wait_s=2) as box:
        programs = prefix / "bin" if prefix else None
        plain = config.Slurm(backend="cli", bin_dir=programs, conf=box.conf)
        if backend == "pyslurm":
            child = InOwnProcess(plain.model_copy(update={"backend": "pyslurm"}))
            try:
                yield Site(box, cast(Cluster, child), open_cluster(plain))
            finally:
                child.stop()
        else:
            yield Site(box, open_cluster(plain), open_cluster(plain))


@pytest.fixture(autouse=True)
def _empty(site: Site) -> Iterator[None]:
    yield
    left = [job.raw_id for job in site.plain.read_jobs() if job.state is not JobState.FINISHED]
    site.plain.cancel([str(raw_id) for raw_id in dict.fromkeys(left)])
    end = time.monotonic() + 90
    while any(job.state is not JobState.FINISHED for job in site.plain.read_jobs()):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_which_one_it_is(site: Site, request: pytest.FixtureRequest) -> None:
    assert site.cluster.backend in request.node.callspec.id
    assert site.cluster.why
    assert site.cluster.ping()
    assert site.cluster.read_config()["SLURM_VERSION"] == ".".join(
        f"{part:02}" if place == 1 else str(part)
        for place, part in enumerate(site.cluster.slurm_version)
    )


def test_one_bulk_query_each(site: Site) -> None:
    job = site.running(site.submit("--gres=gpu:v100:2", "-w", "v1"))
    before = site.cluster.queries
    before = before.copy()
    nodes = {node.name: node for node in site.cluster.read_nodes()}
    partitions = {partition.name: partition for partition in site.cluster.read_partitions()}
    found = site.cluster.read_jobs()
    assert dict(site.cluster.queries - before) == {"nodes": 1, "partitions": 1, "jobs": 1}
    assert set(nodes) == {"v1", "v2", "k1", "m1"}
    assert nodes["v1"].gpus == {"v100": 4} and nodes["v1"].gpus_used == {"v100": 2}
    assert nodes["m1"].gpus == {"p100": 2, "t4": 2}
    assert all(node.usable for node in nodes.values())
    assert nodes["v1"].cpus_used == job.cpus
    assert set(partitions["v100"].nodes) == {"v1", "v2"}
    assert set(partitions["idle"].nodes) == set(nodes)
    assert [one.gpus for one in found if one.id == job.id] == [{"v1": {"v100": 2}}]


def test_what_jobs_have_and_limits_without_an_accounting_database(site: Site) -> None:
    one = site.running(site.submit("-n2", "--mem=1500M"))
    waits = site.submit("-H", "-n3", "--mem=2G", "--array=0-3")
    found = site.cluster.read_use()
    assert found[one.raw_id] == {"cpu": 2, "mem": 1500, "node": 1, "billing": 2}
    assert found[int(waits)] == {"cpu": 3, "mem": 2048, "node": 1, "billing": 3}
    assert site.cluster.read_minutes(["root"]) == Minutes()


def test_a_job_from_submit_to_its_end(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "train me.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:k80:1\nuntil [ -e seen ]; do sleep 0.1; done\n"
    )
    begun = time.time()
    job_id = site.cluster.submit(script, [*QUIET, "-J", 'od"d ; name', "-D", str(tmp_path)])
    job = site.running(job_id)
    assert job.gpus == {"k1": {"k80": 1}} and job.nodes == ("k1",)
    assert job.request.per_node == {"k80": 1} and job.request.typed
    assert (job.name, job.workdir, job.uid) == ('od"d ; name', str(tmp_path), os.getuid())
    assert abs(job.submit_s - begun) < 30 and job.start_s >= job.submit_s
    assert job.time_limit_s == 600 and job.end_s == pytest.approx(job.start_s + 600, abs=2)
    assert job.batch and job.requeue and not job.held and not job.managed
    (tmp_path / "seen").touch()
    done = site.until(job_id, lambda job: job.state is JobState.FINISHED)
    assert done.slurm_state == "COMPLETED" and done.gpus == {}


def test_the_environment_reaches_the_job(site: Site, tmp_path: Path) -> None:
    out = tmp_path / "out"
    env = {**os.environ, "HADAR_EXCHANGE": "/somewhere", "SBATCH_PARTITION": "nosuch"}
    script = '#!/bin/bash\necho "$HADAR_EXCHANGE $SLURM_JOB_PARTITION"\n'
    job_id = site.cluster.submit(script, ["-t", "1", "-o", str(out)], env)
    site.until(job_id, lambda job: job.state is JobState.FINISHED)
    assert out.read_text() == "/somewhere gpu\n"


def test_who_wants_whole_nodes(site: Site) -> None:
    waiting = {site.submit("-H", *options): whole for options, whole in (
        ([], False), (["--exclusive"], True), (["--exclusive=user"], True),
        (["--oversubscribe"], False),
    )}  # fmt: skip
    assert {id_: site.job(id_).exclusive for id_ in waiting} == waiting
    assert site.running(site.submit("--exclusive")).exclusive
    assert not any(partition.exclusive for partition in site.cluster.read_partitions())
    site.box.run("scontrol", "update", "partitionname=idle", "oversubscribe=exclusive")
    try:
        exclusive = [one.name for one in site.cluster.read_partitions() if one.exclusive]
        assert exclusive == ["idle"]
    finally:
        site.box.run("scontrol", "update", "partitionname=idle", "oversubscribe=no")


def test_a_refused_submission_says_why(site: Site) -> None:
    with pytest.raises(SlurmError, match=r"sbatch: .*artition") as caught:
        site.submit("-p", "nosuch")
    assert not caught.value.retry


def test_comments_come_back_to_the_letter(site: Site) -> None:
    declared = Declaration(model="resnet18", types=("any",), gpus=(1, 4), checkpoint=True)
    job_id = site.submit("-H", f"--comment={merge(HOSTILE, declared)}")
    job = site.job(job_id)
    assert job.comment == merge(HOSTILE, declared)
    assert job.declaration == declared and job.managed and job.held
    again = Declaration(model="bert", constraint="a|b & c")
    site.update(job_id, Comment=merge(job.comment, again), AdminComment=f"{HOSTILE} [hadarplan]")
    job = site.job(job_id)
    assert job.comment == merge(HOSTILE, again) and job.declaration == again
    assert job.admin_comment == f"{HOSTILE} [hadarplan]"
    site.update(job_id, Comment="[hadar1 nosuchkey=1]")
    job = site.job(job_id)
    assert job.declaration is None and "nosuchkey" in job.declaration_error and not job.managed
    site.update(job_id, Comment="", AdminComment="")
    assert site.job(job_id).comment == site.job(job_id).admin_comment == ""


@pytest.mark.parametrize("kind", ["k80", "p100"])
def test_a_waiting_job_starts_on_the_chosen_type(site: Site, kind: str) -> None:
    job_id = site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1"])
    waiting = site.until(job_id, lambda job: job.reason == "BeginTime")
    assert waiting.state is JobState.PENDING and not waiting.held
    assert 500 < waiting.start_s - waiting.submit_s < 700
    assert waiting.request.per_node == {"": 1} and not waiting.request.typed
    site.update(job_id, Features=kind, StartTime="now")
    job = site.running(job_id)
    assert job.features == kind and job.gpu_count == 1
    assert job.nodes == ({"k80": "k1", "p100": "m1"}[kind],)


def test_a_begin_time_is_changed_and_a_request_widened_again(site: Site) -> None:
    job_id = site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1", "-C", "k80"])
    site.update(
        job_id,
        StartTime=begin_time(time.time() + 3000),
        Features="",
        ReqNodeList="v2",
        TimeLimit="33",
    )
    job = site.job(job_id)
    assert job.start_s == pytest.approx(time.time() + 3000, abs=30)
    assert job.features == "" and job.required_nodes == ("v2",) and job.time_limit_s == 33 * 60
    site.update(job_id, ReqNodeList="")
    assert site.job(job_id).required_nodes == ()


def test_a_running_job_moves_to_another_type(site: Site) -> None:
    job_id = site.submit("--gres=gpu:1", "-C", "v100", "--requeue")
    before = site.running(job_id)
    assert before.nodes[0] in ("v1", "v2") and before.restarts == 0
    assert site.cluster.requeue([job_id]) == [None]
    waiting = site.until(job_id, lambda job: job.state is JobState.PENDING)
    assert not waiting.held and waiting.restarts == 1 and waiting.gpus == {}
    site.update(job_id, Features="k80", StartTime=at_once(waiting, time.time()))
    after = site.running(job_id)
    assert after.nodes == ("k1",) and after.gpus == {"k1": {"k80": 1}}
    assert after.raw_id == before.raw_id


def test_a_job_starts_again_right_after_its_requeue(site: Site) -> None:
    # Early in a second: then what Slurm cannot do, to start it in the same one, would be tried.
    job_id = site.submit("--gres=gpu:1", "--requeue")
    for restarts in (1, 2, 3):
        site.running(job_id)
        time.sleep(1.05 - time.time() % 1)
        assert site.cluster.requeue([job_id]) == [None]
        waiting = site.until(job_id, lambda job: job.state is JobState.PENDING, every_s=0.02)
        assert waiting.restarts == restarts
        time.sleep(max(0.0, startable_s(waiting) - time.time()))
        site.update(job_id, StartTime=at_once(waiting, time.time()))
    time.sleep(0.5)
    assert site.running(job_id).restarts == 3


def test_requeue_answers_for_each(site: Site) -> None:
    first, second = site.submit("--requeue"), site.submit("--requeue")
    for job_id in (first, second):
        site.running(job_id)
    answers = site.cluster.requeue([first, "999999", second])
    assert answers[0] is None and answers[2] is None
    assert isinstance(answers[1], SlurmError) and "Invalid job id" in str(answers[1])
    for job_id in (first, second):
        site.until(job_id, lambda job: job.restarts == 1)


@pytest.mark.parametrize(
    ("ending", "state"),
    [("exit 0", "COMPLETED"), ("exit 3", "FAILED"), ("sleep 120", "CANCELLED")],
)
def test_a_requeue_of_an_ended_job_does_not_run_it_again(
    site: Site, tmp_path: Path, ending: str, state: str
) -> None:
    starts = tmp_path / "starts"
    script = f"#!/bin/bash\necho start >> {starts}\n{ending}\n"
    job_id = site.submit("--requeue", script=script)
    if state == "CANCELLED":
        site.running(job_id)
        site.cluster.cancel([job_id])
    site.until(job_id, lambda job: job.state is JobState.FINISHED)
    site.cluster.requeue([job_id])
    # A requeued job would be PENDING at once, and could start when cred_expire has passed.
    for _ in range(5):
        time.sleep(0.3)
        job = site.job(job_id)
        assert job.slurm_state == state and job.restarts == 0
    assert state == "CANCELLED" or starts.read_text().split() == ["start"]


def test_a_requeue_of_a_waiting_job_changes_nothing(site: Site) -> None:
    later = site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1", "-C", "k80", "--requeue"])
    held = site.submit("-H", "--requeue")
    before = site.until(later, lambda job: job.reason == "BeginTime")
    site.cluster.requeue([later, held])
    time.sleep(1)
    after = site.job(later)
    assert after.state is JobState.PENDING and not after.held and after.restarts == 0
    assert (after.start_s, after.eligible_s) == (before.start_s, before.eligible_s)
    assert site.job(held).held and site.job(held).restarts == 0
    site.update(later, StartTime="now")
    assert site.running(later).nodes == ("k1",)


def test_a_job_held_after_a_failed_launch_says_so_and_can_be_released(
    site: Site, tmp_path: Path
) -> None:
    box, prolog = site.box, tmp_path / "prolog"
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o755)
    before = box.conf.read_text()
    box.kill_slurmd("k1")
    box.conf.write_text(f"{before}\nProlog={prolog}\n")
    try:
        box.start_slurmd("k1")
        job_id = site.submit("--requeue", "-w", "k1")
        job = site.until(job_id, lambda job: job.held)
        assert "launch failed" in job.reason.lower().replace("_", " "), job
        assert job.state is JobState.PENDING and job.requeue
        end = time.monotonic() + 60
        while all(node.usable for node in site.cluster.read_nodes()):
            assert time.monotonic() < end, "Slurm does not drain the node"
            time.sleep(0.2)
    finally:
        box.conf.write_text(before)
        box.kill_slurmd("k1")
        box.run("scontrol", "update", "nodename=k1", "state=resume")
        box.start_slurmd("k1")
    site.cluster.release(job_id)
    waiting = site.job(job_id)
    assert not waiting.held
    site.update(job_id, StartTime=at_once(waiting, time.time()))
    assert site.running(job_id).nodes == ("k1",)


@pytest.mark.parametrize(
    ("request_text", "fields_sent", "kinds"),
    [
        ("--gres=gpu:1", {"TresPerNode": "gpu:3", "Features": "v100"}, {"v100": 3}),
        ("--gres=gpu:v100:1", {"TresPerNode": "gpu:v100:4"}, {"v100": 4}),
        ("--gpus=1", {"TresPerJob": "gpu:3", "Features": "k80"}, {"k80": 3}),
    ],
)
def test_a_waiting_job_gets_another_number_of_gpus(
    site: Site, request_text: str, fields_sent: dict[str, str], kinds: dict[str, int]
) -> None:
    job_id = site.cluster.submit(SLEEP, [*LATER, "-N1", request_text])
    site.update(job_id, **fields_sent, StartTime="now")
    job = site.running(job_id)
    assert list(job.gpus.values()) == [kinds]
    request = job.request.per_job if "TresPerJob" in fields_sent else job.request.per_node
    assert sum(request.values()) == job.gpu_count


def test_a_waiting_jobs_nodes_are_those_it_asks_for(site: Site) -> None:
    held = ["--gpus=3", "-H"]
    least = {site.submit(*held): 1, site.submit(*held, "-N2-4", "-n2"): 2}
    least[site.submit("-H", "-N2", "--gres=gpu:1")] = 2
    for job_id, nodes in least.items():
        assert site.job(job_id).node_count == nodes
        site.update(job_id, Features="v100")
        assert site.job(job_id).node_count == nodes


def test_types_mix_over_nodes(site: Site) -> None:
    job_id = site.cluster.submit(SLEEP, [*LATER, "--gpus=3", "-N1-4", "-n2"])
    site.update(job_id, ReqNodeList="v1,k1", NumNodes="2-2", StartTime="now")
    job = site.running(job_id)
    assert set(job.gpus) == {"v1", "k1"} and job.gpu_count == 3
    assert set(job.gpus["v1"]) == {"v100"} and set(job.gpus["k1"]) == {"k80"}
    assert job.node_count == 2


def test_a_waiting_job_changes_its_partition(site: Site) -> None:
    job_id = site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1"])
    for partitions in ("k80", "v100,k80", "k80"):
        site.update(job_id, Partition=partitions)
        assert set(site.job(job_id).partitions) == set(partitions.split(","))
    site.update(job_id, StartTime="now")
    assert site.running(job_id).nodes == ("k1",)


def test_mails_are_told_and_changed_while_a_job_runs(site: Site) -> None:
    """What is told is what Slurm takes back, of a task of an array too."""
    asked = (["--mail-type=ALL"], ["--array=3", "--mail-type=BEGIN,ARRAY_TASKS"], [])
    ids = [site.submit("--gres=gpu:1", *words) for words in asked]
    names = [ids[0], f"{ids[1]}_3", ids[2]]
    numbers = [site.running(name).raw_id for name in names]
    told = site.cluster.read_mail_types([*numbers, 1])
    assert set(told) >= set(numbers[:2]) and 1 not in told
    assert {"BEGIN", "END", "FAIL", "REQUEUE"} < set(told[numbers[0]])
    assert set(told[numbers[1]]) == {"BEGIN", "ARRAY_TASKS"}
    assert set(told.get(numbers[2], ("NONE",))) == {"NONE"}
    for name, number in zip(names[:2], numbers, strict=False):
        for types in (("NONE",), ("END", "FAIL"), told[number]):
            site.update(name, MailType=",".join(types))
            now = site.cluster.read_mail_types([number]).get(number, ("NONE",))
            assert set(now) == set(types)


@pytest.mark.parametrize(("first", "node"), [("k80", "k1"), ("v100", "v")])
def test_where_several_partitions_are_free_the_first_of_a_list_is_taken(
    site: Site, first: str, node: str
) -> None:
    job_id = site.submit("--gres=gpu:1", "-H", "-p", "v100,k80")
    partitions = (first, *({"v100", "k80"} - {first}))
    site.update(job_id, Partition=",".join(partitions))
    assert site.job(job_id).partitions == partitions
    site.cluster.release(job_id)
    assert site.running(job_id).nodes[0].startswith(node)


def test_a_list_neither_delays_a_waiting_job_nor_costs_it_its_place(site: Site) -> None:
    full = [site.submit("--gres=gpu:4", "-w", node) for node in ("k1", "v1", "v2")]
    for job_id in full:
        site.running(job_id)
    first, behind = (site.submit("--gres=gpu:4", "-C", "v100|k80") for _ in range(2))
    before = site.until(first, lambda job: job.reason == "Resources")
    for partitions in ("v100,k80", "k80,v100"):
        site.update(first, Partition=partitions)
        after = site.job(first)
        assert after.partitions == tuple(partitions.split(","))
        assert (after.priority, after.eligible_s) == (before.priority, before.eligible_s)
        assert (after.submit_s, after.features) == (before.submit_s, before.features)
    # The second of its list is freed, and it takes that.
    site.cluster.cancel(full[1:2])
    assert site.running(first).nodes == ("v1",)
    assert site.job(behind).state is JobState.PENDING


def test_a_requeued_job_has_all_of_its_list(site: Site) -> None:
    """Slurm puts the one first in which it ran, so the order is written anew."""
    job_id = site.submit("--gres=gpu:1", "--requeue", "-p", "k80,v100")
    assert site.running(job_id).partitions == ("k80",)
    assert site.cluster.requeue([job_id]) == [None]
    waiting = site.until(job_id, lambda job: job.state is JobState.PENDING)
    assert set(waiting.partitions) == {"v100", "k80"}
    begin = at_once(waiting, time.time())
    site.update(job_id, Partition="v100,k80", StartTime=begin)
    assert site.job(job_id).partitions == ("v100", "k80")
    assert site.running(job_id).nodes[0] in ("v1", "v2")


LISTENING = """#!/bin/bash
trap 'echo shell >> {file}' USR2
srun --mpi=none -n1 --overlap bash -c "trap 'echo step >> {file}' USR2
echo ready >> {file}; while true; do sleep 0.1; done" &
while true; do sleep 0.1; done
"""


@pytest.mark.parametrize(
    ("target", "heard"),
    [("steps", {"step"}), ("batch", {"shell"}), ("full", {"shell", "step"})],
)
def test_signals_reach_whom_they_should(
    site: Site, tmp_path: Path, target: Target, heard: set[str]
) -> None:
    file = tmp_path / "heard"
    job_id = site.submit(script=LISTENING.format(file=file))
    site.running(job_id)

    def lines() -> set[str]:
        return set(file.read_text().split()) if file.exists() else set()

    end = time.monotonic() + 90
    while "ready" not in lines():
        assert time.monotonic() < end
        time.sleep(0.1)
    site.cluster.signal(job_id, "SIGUSR2", target)
    while not heard <= lines():
        assert time.monotonic() < end, lines()
        time.sleep(0.1)
    time.sleep(0.5)
    assert lines() == heard | {"ready"}
    assert site.job(job_id).state is JobState.RUNNING


def test_one_signal_to_a_task_whose_neighbours_wait(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "heard"
    script = f"#!/bin/bash\ntrap 'echo shell >> {file}' USR2\necho ready >> {file}\n"
    array = site.submit("--array=0-2%1", script=script + "while true; do sleep 0.1; done\n")
    site.running(f"{array}_0")
    end = time.monotonic() + 90
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    begun = time.monotonic()
    site.cluster.signal(f"{array}_0", "USR2", "batch")
    assert time.monotonic() - begun < 5
    time.sleep(max(0, begun + 6.5 - time.monotonic()))
    assert file.read_text().split() == ["ready", "shell"]


def test_signals_to_nobody_are_errors(site: Site) -> None:
    with pytest.raises(SlurmError):
        site.cluster.signal("999999", "USR2")


def test_hold_and_release(site: Site) -> None:
    job_id = site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1"])
    site.cluster.hold(job_id)
    assert site.job(job_id).held
    site.update(job_id, StartTime="now")
    time.sleep(1)
    assert site.job(job_id).state is JobState.PENDING
    site.cluster.release(job_id)
    assert not site.running(job_id).held
    with pytest.raises(SlurmError):
        site.cluster.release("999999")


def test_cancel(site: Site) -> None:
    running, waiting = site.submit(), site.submit("-H")
    site.running(running)
    assert site.cluster.cancel([running, waiting, "999999"]) == [None] * 3
    for job_id in (running, waiting):
        site.until(job_id, lambda job: job.state is JobState.FINISHED)
    assert site.cluster.cancel([waiting]) == [None]
    assert site.cluster.cancel([]) == []


def test_tasks_of_an_array_are_steered_one_by_one(site: Site) -> None:
    array = site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1", "--array=0-3,7%2"])
    names = [f"{array}_{task}" for task in (0, 1, 2, 3, 7)]
    assert [job.id for job in site.cluster.read_jobs([array])] == names
    assert site.cluster.apply(
        [
            Update(names[2], {"Features": "k80", "StartTime": "now"}),
            Update(names[4], {"Features": "p100", "Comment": "task seven"}),
        ]
    ) == [None, None]
    second = site.running(names[2])
    assert second.nodes == ("k1",) and second.array_job_id == int(array)
    assert second.raw_id != int(array)
    seventh = site.job(names[4])
    assert seventh.features == "p100" and seventh.comment == "task seven"
    assert seventh.state is JobState.PENDING and site.job(names[0]).features == ""
    assert sorted(job.id for job in site.cluster.read_jobs([array])) == sorted(names)
    assert site.cluster.requeue([names[2]]) == [None]
    waits = site.until(names[2], lambda job: job.state is JobState.PENDING and job.restarts == 1)
    site.update(names[2], Features="v100", StartTime=at_once(waits, time.time()))
    assert site.running(names[2]).nodes[0] in ("v1", "v2")
    assert site.cluster.cancel([names[0], names[2]]) == [None, None]
    site.until(names[2], lambda job: job.state is JobState.FINISHED)
    assert site.job(names[1]).state is JobState.PENDING


def test_a_long_array_is_cut_and_it_is_said(site: Site) -> None:
    array = site.submit("-H", "--array=1-999:2")
    found = [job for job in site.cluster.read_jobs(None, 5) if job.array_job_id == int(array)]
    assert [job.id for job in found] == [f"{array}_{task}" for task in (1, 3, 5, 7, 9)]
    assert any(note.startswith(f"array {array}: 5 of ") for note in site.cluster.notes)
    (late,) = site.cluster.read_jobs([f"{array}_501"], 5)
    assert late.id == f"{array}_501"
    assert site.cluster.read_jobs([f"{array}_502"], 5) == []


def test_one_bad_update_among_good_ones(site: Site) -> None:
    ids = [site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1"]) for _ in range(6)]
    answers = site.cluster.apply(
        [
            Update(ids[0], {"Features": "k80"}),
            Update("999999", {"Features": "k80"}),
            Update(ids[1], {"Partition": "nosuch"}),
            Update(ids[2], {"Comment": "two words", "Features": "v100"}),
            Update(ids[3], {"Comment": "two\nlines"}),
            Update(ids[3], {"TimeLimit": "nonsense"}),
            Update("1; id", {"Features": "k80"}),
            Update(ids[4], {"Partition": "v100"}),
            Update(ids[5], {"NumCPUs": "2-2"}),
        ]
    )
    assert [answer is None for answer in answers] == [
        True, False, False, True, False, False, False, True, True,
    ]  # fmt: skip
    said = [str(answer) for answer in answers]
    assert "Invalid job id" in said[1] and "artition" in said[2]
    assert "line breaks" in said[4] and "no job id" in said[6]
    assert not any(answer.retry for answer in answers if answer is not None)
    found = {job.id: job for job in site.cluster.read_jobs(ids)}
    assert found[ids[0]].features == "k80" and found[ids[2]].features == "v100"
    assert found[ids[1]].partitions == ("gpu",) and found[ids[4]].partitions == ("v100",)
    assert found[ids[5]].cpus == 2


TOLD_WAITING = [
    {"NumNodes": "1-1"},
    {"NumNodes": "1-1", "NumTasks": "2"},
    {"NumNodes": "1-1", "NumTasks": "1", "NumCPUs": "1-1"},
    {"NumNodes": "1-1", "Features": "v100"},
    {"NumNodes": "1-1", "Partition": "idle"},
    {"Partition": "idle,gpu"},
    {"ReqNodeList": "v1"},
    {"ReqNodeList": "v1", "NumNodes": "1-1", "NumTasks": "1", "NumCPUs": "1-1"},
    {"ReqNodeList": "v1", "TresPerNode": "gpu:2"},
    {"ReqNodeList": "v1", "NumNodes": "1-1", "Partition": "idle"},
    {"ReqNodeList": "", "NumNodes": "1-1"},
    {"Features": "k80", "NumTasks": "1", "NumCPUs": "1-1"},
    {"CPUsPerTask": "1", "NumCPUs": "1-1", "MinCPUsNode": "1"},
    {"MinMemoryNode": "100"},
    {"MinMemoryCPU": "100"},
    {"TresPerNode": "gpu:2"},
    {"TresPerJob": "gpu:2"},
]


def test_what_a_waiting_job_was_to_be_told_does_nothing_to_one_that_began(site: Site) -> None:
    """ReqNodeList and NumNodes cut nodes off a running job, and what trained there."""
    job_id = site.submit("-N2", "-n2", "-wv1,v2", "--gres=gpu:1", "--begin=now+40")
    waiting, now = site.job(job_id), time.time()
    assert waiting.state is JobState.PENDING
    site.update(job_id, StartTime="now")
    running = site.running(job_id)
    for told in TOLD_WAITING:
        for begin in ({"StartTime": "now"}, {}):
            update = Update(job_id, {**told, **begin, "AdminComment": "told"})
            answers = pending.apply(site.cluster, [waiting], [update], now)
            assert "no longer pending" in str(answers[0]), told
            found = replace(site.job(job_id), admin_comment=running.admin_comment)
            assert found == running, told


def test_a_waiting_job_that_might_begin_at_any_moment_is_told_all_the_same(site: Site) -> None:
    ids = [site.cluster.submit(SLEEP, [*LATER, "-N1-2", "--gres=gpu:1"]) for _ in range(3)]
    for job_id in ids:
        site.update(job_id, StartTime="now+20")
    jobs = [site.job(job_id) for job_id in ids]
    told = ({"StartTime": "now"}, {}, {"StartTime": "now+600"})
    updates = [
        Update(job_id, {"ReqNodeList": "v2", "NumNodes": "1-1", **begin})
        for job_id, begin in zip(ids, told, strict=True)
    ]
    assert pending.apply(site.cluster, jobs, updates, time.time()) == [None] * 3
    assert site.job(ids[1]).eligible_s == pytest.approx(jobs[1].eligible_s, abs=1)
    assert site.job(ids[2]).eligible_s > time.time() + 500
    assert all(site.job(job_id).required_nodes == ("v2",) for job_id in ids)
    assert site.running(ids[0]).nodes == ("v2",)
    # One that cannot begin soon takes one request, as ever.
    before = site.cluster.queries["update"]
    last = pending.apply(site.cluster, [site.job(ids[2])], updates[2:], time.time())
    assert last == [None] and site.cluster.queries["update"] == before + 1


def test_many_plain_updates_cost_one_command(site: Site) -> None:
    ids = [site.cluster.submit(SLEEP, [*LATER, "--gres=gpu:1"]) for _ in range(8)]
    before = site.cluster.queries["update"]
    answers = site.cluster.apply([Update(job_id, {"Features": "k80"}) for job_id in ids])
    assert answers == [None] * len(ids)
    sent = site.cluster.queries["update"] - before
    assert sent == (1 if site.cluster.backend == "commands" else len(ids))
    assert {job.features for job in site.cluster.read_jobs(ids)} == {"k80"}


def test_updates_of_one_job_keep_their_order(site: Site) -> None:
    job_id = site.submit("-H")
    updates = [Update(job_id, {"Comment": text}) for text in ("a b", "c", "d e", "f", "g h")]
    assert site.cluster.apply(updates) == [None] * 5
    assert site.job(job_id).comment == "g h"


def test_unknown_ids_are_missing_and_no_error(site: Site) -> None:
    job_id = site.submit("-H")
    assert site.cluster.read_jobs(["999999"]) == []
    assert [job.id for job in site.cluster.read_jobs(["999999", job_id])] == [job_id]
    assert site.cluster.read_jobs([]) == []
    with pytest.raises(HadarError, match="no job id"):
        site.cluster.read_jobs(["--all"])


def test_het_jobs_are_seen_as_such(site: Site) -> None:
    job_id = site.cluster.submit(SLEEP, [*LATER, "-n1", ":", "-n1"])
    parts = site.cluster.read_jobs([job_id])
    assert sorted(job.id for job in parts) == [f"{job_id}+0", f"{job_id}+1"]
    assert all(job.het and not job.managed for job in parts)


def test_reservations_and_drained_nodes(site: Site) -> None:
    box = site.box
    box.run(
        "scontrol", "create", "reservation=weekly", "starttime=now+7200", "duration=60",
        "nodes=v[1-2]", f"users={os.environ.get('USER', 'root')}",
    )  # fmt: skip
    try:
        (found,) = site.cluster.read_reservations()
    finally:
        box.run("scontrol", "delete", "reservation=weekly")
    assert found.name == "weekly" and found.nodes == ("v1", "v2")
    assert found.end_s - found.start_s == 3600 and found.start_s > time.time() + 7000
    assert site.cluster.read_reservations() == []
    box.run("scontrol", "update", "nodename=m1", "state=drain", "reason=State=IDLE Gres=gpu:9")
    try:
        (node,) = [node for node in site.cluster.read_nodes() if node.name == "m1"]
    finally:
        box.run("scontrol", "update", "nodename=m1", "state=resume")
    assert not node.usable and node.gpus == {"p100": 2, "t4": 2}


@pytest.mark.parametrize("site", [PYSLURM], ids=["pyslurm-prefix"], indirect=True)
def test_both_back_ends_see_the_same(site: Site) -> None:
    assert (site.cluster.backend, site.plain.backend) == ("pyslurm", "commands")
    ids = [
        site.running(site.submit("--gpus=3", "-w", "v1,k1", "-N2", "-n2")).id,
        site.submit("-H", "--gres=gpu:v100:2", f"--comment={HOSTILE}"),
        site.submit("-H", "--gpus=3"),
        site.submit("-H", "--gpus-per-task=1", "-n2", "-c3", "-d", "afterany:1:2"),
        site.submit("-H", "--exclusive", "--mem=3G", "-p", "idle,gpu", "-x", "k1"),
        site.submit("-H", "--array=0"),
        site.submit("--array=0-2%1", "--gres=gpu:1"),
        site.submit("-H", "-C", "v100|k80", "-s", "--no-requeue", "--begin=now+900"),
        site.submit("-H", "--nodes=2-3", "--ntasks-per-node=2", "--mem-per-cpu=100"),
    ]
    site.running(f"{ids[6]}_0")

    def differing() -> dict[str, object]:
        ours = {job.id: job for job in site.cluster.read_jobs(ids)}
        theirs = {job.id: job for job in site.plain.read_jobs(ids)}
        assert set(ours) == set(theirs) and len(ours) >= len(ids) + 2
        return {
            f"{job_id}: {field.name}": pair
            for job_id, job in ours.items()
            for field in fields(Job)
            for pair in [(getattr(job, field.name), getattr(theirs[job_id], field.name))]
            if pair[0] != pair[1]
        }

    # Slurm may have looked at a job again between the two.
    end = time.monotonic() + 60
    while found := differing():
        assert time.monotonic() < end, found
        time.sleep(0.5)
    assert site.cluster.read_nodes() == site.plain.read_nodes()
    assert site.cluster.read_partitions() == site.plain.read_partitions()


def test_without_slurmctld_everything_is_an_error_that_may_pass(site: Site) -> None:
    job_id = site.submit("-H")
    site.box.stop_slurmctld()
    try:
        assert not site.cluster.ping()
        for read in (site.cluster.read_jobs, site.cluster.read_nodes, site.cluster.read_partitions):
            with pytest.raises(SlurmError) as caught:
                read()
            assert caught.value.retry
    finally:
        site.box.start_slurmctld()
    assert site.job(job_id).held
