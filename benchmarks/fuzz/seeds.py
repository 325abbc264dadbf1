"""Real input that is damaged: recorded answers of Slurm, shipped files, what we write ourselves."""

import gzip
import json
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.plan_file import JobPlan
from slurm_hadar.exchange.progress import Ack, Progress, Saved
from slurm_hadar.profiles.gpu_sampling import GpuUse, TrainingUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.profiles.gpu_use import GpuUses
from slurm_hadar.profiles.measured import MeasuredStore, RateSample

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "slurm"
RELEASES = ("22.05.8", "24.11.5", "26.05.5")

WORDS = (
    b"model=resnet18\ntypes=v100,k80\ngpus=1-4\ngpu-mem=16G\nbatch=64:512\nsamples=5e6\nepochs=3\n"
    b"dataset_size=50000\ncheckpoint=yes\nsignal=USR1\nrestart_cost=12.5\nfork=1-8\ntasks=4\n"
    b"backfill=yes\nnodes=1-8\ncpus=1-8\nmem=8G-32G\noff=no\npin=yes\ncheckpoint=watch:/a/%j/b?-*.pt\n"
    b"checkpoint=restart\nlose=600\nsignal=B:SIGUSR1@60\ncheckpoint_exit_code=85\nmax_requeues=3\n"
    b"progress=step={step*64}/"
)
COMMENTS = [
    b"mine [x] [hadar1 model=resnet18 types=any gpus=1-4 batch=64-512 checkpoint=yes lease=yes] s",
    b"[hadar1 types=v100,k80 gpu_mem=24576 samples=5000000 constraint=a%7cb%20%26c partitions=a,b]",
    b"[hadar1 fork=1-8 tasks=4 cpus=1-8 mem=8192-32768 restart_cost=12.5 signal=USR1 backfill=yes]",
    b"[hadar1 checkpoint=watch:/a/%25j-*.pt signal=B:USR1@60 lose=600 checkpoint_exit_code=85]",
]
ADMIN_COMMENTS = [
    b"theirs [hadarplan;t=1795220647;on=k80:2,v100:1;at=k1/k80:2+v1/v100:1;lease=1;moves=3;"
    b"batch=512;was.Features=a%7cb;was.TresPerNode=gpu:2] too",
    b"[hadarplan;t=1795220647;moves=1;not=Features;was.Partition=gpu;set.Partition=v100,k80]",
    b"[hadarplan;t=0]",
]
SCRIPT = (
    b"#!/bin/bash\n#SBATCH -J 'my job' --gres=gpu:v100:2 -N1-2 # comment\n#HADAR model=resnet18 "
    b"gpus=1-4\n\n#SBATCH --comment=\"a b\" -C 'a|b'\n#HADAR batch=64:512 checkpoint=yes # why\n"
    b"#SBATCH hetjob\nsrun python train.py\n"
)
ARGV = (
    b"--hadar-model=resnet18\n--hadar-gpus\n1-4\n-N2\n--gres=gpu:2\n-Jname\n--comment\na b\n-t\n10"
    b"\n--hadar-plan\n--json\n--exclusive\n--wrap=sleep 1\nscript.sh\nargument\n"
)
VALUES = (
    b"job_name=train\ngres=gpu:2\ncommand=python train.py --epochs 3\ntime=2:00:00\nsetup=. v/x\n"
    b"hadar=model=resnet18 gpus=1-4\nsbatch=--mem=4G -n2"
)
REQUESTS = b"41036|gres:gpu:3|N/A|cpu=1,mem=1G,node=2|\n41037|N/A|gres/gpu:1|N/A|\n41038|||\n"
LIMITS = (
    b"root|||||||||||||\nphys|||root|normal|cpu=9|||cpu=40||mem=64G||40|\n"
    b"phys|ann|gpu||normal,gold|||60||||gres/gpu=2||\n"
    b"chem|||phys||||||||||\nchem|bob|||normal||cpu=9000|||||||\n--\nnormal|1.000000||||||||||||||cluster||||\n"
    b"gold|0.500000|cpu=90||cpu=100,gres/gpu=8|||||||mem=9T|cpu=20|OverPartQOS|00:05:00|normal|requeue||4|\n"
)
MINUTES = (RECORDED / "22.05.8" / "assoc_mgr.txt").read_bytes()
USE = b"208006|cpu=4,mem=4G,node=1,billing=4,gres/gpu=1|\n7|N/A|\n"
COMMANDS: Mapping[str, bytes] = {
    "scontrol --version": b"slurm-wlm 22.05.8\n",
    "sacctmgr show user": b"ann|None\nbackup|Operator\n",
    "sbatch --parsable": b"sbatch: warning: no email\n4711;made\n",
    "scontrol's standard input": (
        b"invalid keyword: hadar-mark-0\nslurm_update error: Invalid job id specified\n"
        b"invalid keyword: hadar-mark-1\ninvalid keyword: hadar-mark-2\n"
    ),
}
TEST_ONLY = (
    b"sbatch: Job 4711 to start at 2026-11-21T19:19:24 using 2 processors on nodes v[1-2] in "
    b"partition gpu\n"
)
NOTATIONS = (
    b"v[1-2,7-9],k1,m[01-04]n[1-2]\ngpu:v100:2(S:0-1),gpu:k80:1(IDX:0-1),craynetwork:4\n"
    b"gres/gpu=2,gres/gpu:v100=2,cpu=4,node=2\n1-02:03:04\n2026-11-21T19:19:24\n0-3,7,10-20:2%4\n"
    b"UNLIMITED\n5:30\n1,2,18..."
)
SINFO = (
    b"NODELIST|GRES|CPUS|MEMORY|AVAIL_FEATURES|PARTITION\n"
    b"v1|gpu:v100:4(S:0-1)|32|256000|v100,ib|gpu\nv1|gpu:v100:4(S:0-1)|32|256000|v100,ib|idle\n"
    b"k[1-4]|gpu:k80:4|32+|128000|k80|gpu\nc1|(null)|64|64000|(null)|cpu\n"
)
OLD_SITE = b"""\
version = 1
[lease]
length_s = 300
[partitions]
steer = ["v100", "k80"]
opt_in = ["open"]
[partitions.groups]
gpu = ["v100", "k80"]
[gpu_types.v100]
[gpu_types.k80]
"""
"""With what earlier releases knew."""
SLURM_CONF = """\
ClusterName=made # ours
SelectType=select/cons_tres
SchedulerParameters="bf_window=1440,bf_continue"
GresTypes=gpu
Include more.conf
NodeName=DEFAULT CPUs=32 RealMemory=256000 Sockets=2 CoresPerSocket=16
NodeName=v[1-2] Gres=gpu:v100:4 Feature=v100,"ib"
NodeName=k[1-4] Gres=gpu:k80:4 \\
  Features=k80 State=DOWN # the old ones
PartitionName=DEFAULT MaxTime=2-0 DefaultTime=60
PartitionName=v100 Nodes=v[1-2] Default=YES PriorityTier=2 AllowGroups=a,b
PartitionName=all Nodes=ALL GraceTime=60 PreemptMode=REQUEUE State=UP
"""
NATIVE = (
    b"# a comment\njob_id,arrival_s,gpus,samples,model,batch,rate_v100,rate_p100,rate_k80,counts,"
    b"weight,max_nodes,cpus_per_gpu,mem_per_gpu_gb,gradient_mb,tasks,most_batch,noise_scale\n"
    b"a,0,2,5e6,ResNet-18,64,,,,1-4,1,2,3,62.5,,2,,\nb,10.5,1,1000,,,100,50,0,,2,,,,,,,\n"
    b'"c, d",20,4,9e5,Transformer,256,,,,1 2 4,,,,,44.7,,1024,500\n'
)
FRAGMENTS = (
    b"node,idle_start_s,idle_end_s,censored\nn1,0,600,0\nn1,700,1300.5,0\nn2,50,9000,1\nn3,1,2,0\n"
)
TRAINERS = json.dumps(
    {
        "at_once": 5,
        "trainers": [
            {"name": "a", "nodes": [1, 2, 4], "samples_per_s": [100, 190, 350.5], "samples": 1e6,
             "least": 1, "most": 4, "grow_s": 20, "shrink_s": 5.5, "arrival_s": 0, "copies": 3},
            {"name": "b", "nodes": [0, 8], "samples_per_s": [0, 800], "samples": 1e5,
             "grow_s": 20, "shrink_s": 5, "user": "eve"},
        ],
    }
).encode()  # fmt: skip
MODELS = json.dumps(
    {
        "ShuffleNet": {
            "nodes": [1, 2, 4, 8], "img_per_s": [400, 780, 1500, 2800], "Jmin": 1, "Jmax": 8,
            "Pmax": 1e7, "Tcup_s": {"mean": 20.5, "std": 1}, "Tcdw_s": {"mean": 5, "std": 1},
        },
        "VGG16": {
            "nodes": [1, 2], "img_per_s": [40, 78], "Jmin": 1, "Jmax": 2, "Pmax": 1e6,
            "Tcup_s": {"mean": 30}, "Tcdw_s": {"mean": 6},
        },
    }
).encode()  # fmt: skip
RATES = json.dumps(
    {
        "version": 1,
        "source": "ours",
        "rows": [
            ["ResNet-18", "v100", 1, 64, 1234.5, None], ["ResNet-18", "v100", 2, 64, 2300, 2100.5],
            ["ResNet-18", "k80", 1, 64, 200, None], ["~name", "k80", 4, 128, 0, 0.0],
        ],
    }
).encode()  # fmt: skip
CPU_RATES = json.dumps(
    {
        "version": 1,
        "source": "ours",
        "rows": [["m", 1, c, g, 0.1 * c * g] for c in (1, 2, 4) for g in (8, 32)],
    }
).encode()
WRAPPER: Mapping[str, object] = {
    "version": 1, "mode": "act", "exchange_dir": "/nowhere", "controller_uid": 7,
    "opt_in": ["gpu"], "default_types": "any", "quiet": False, "sbatch": "/usr/bin/sbatch",
    "slurm_conf": "/etc/slurm/slurm.conf", "stamp": [1, 2],
    "types": {
        "v100": {"feature": "v100", "memory_gb": 16}, "k80": {"feature": "k80", "memory_gb": 12},
    },
    "groups": {"gpu": {"v100": "v100", "k80": "k80"}},
    "speeds": {"": {"v100": 1.0, "k80": 0.28}, "resnet18": {"v100": 1.0, "k80": 0.12}},
}  # fmt: skip
WRAPPER_JSON = json.dumps(WRAPPER).encode()
PROGRESS = Progress(
    job="84_2", time=1.7e9, restarts=1, host="v1", pid=7, in_step=False, started=1.7e9,
    model="resnet18", samples=640, rate=12.5, window_s=3.0, batch=64, gpus=2, noise_scale=50.5,
    checkpoint=Saved(600, 1.7e9, 0.2), ack=Ack("n1", 1.7e9, 600), restart_s=4.5,
)  # fmt: skip
PLAN = asdict(
    JobPlan("84_2", 1.7e9, {"v100": 2}, 512, 2, (0.5, 0.5), 4.0, "nonce", 1, "faster there by 1.3")
)
HEARTBEAT = {
    "host": "login1", "pid": 7, "mode": "act", "time": 1.7e9, "interval_s": 60.0, "room": True,
}  # fmt: skip
GPU_USE = asdict(
    NodeUse(
        "84", "v1", 7, 1.7e9, False,
        (GpuUse("GPU-1", "Tesla V100", 60.0, 0.5, 1000.0, 2000.0, 250.0, 30.0, 20.0, 10.0),),
    )
)  # fmt: skip
TRAINING_USE = TrainingUse(12.5, 1, 0.5, 1000.0, 2000.0, 250.0, 20.0, 0.3, 0.1, 60.0)
CLOSED = 1.7e9
"""When the last entry of the journal's seed ended, s since the epoch."""


def one_of(read: Callable[[], object]) -> None:
    """Read what may be refused in a clear sentence."""
    try:
        read()
    except HadarError as error:
        assert str(error).isprintable(), repr(error)


def versioned(content: Mapping[str, object]) -> bytes:
    """As it lies in the exchange folder."""
    return json.dumps({"version": 1, **content}).encode()


def steered() -> list[bytes]:
    """What is kept of a job, as it lies there."""
    texts = [text[text.index(b"[") : text.rindex(b"]") + 1].decode() for text in ADMIN_COMMENTS]
    return [versioned({"job": "84_2", "steering": text}) for text in texts]


def zipped(data: bytes) -> bytes:
    """Gzipped, without a time stamp."""
    return gzip.compress(data, mtime=0)


@cache
def answers() -> Mapping[str, Sequence[bytes]]:
    """Recorded answers of all releases by kind; those of squeue by release, three jobs each."""
    found: dict[str, list[bytes]] = {"topology": [_TOPOLOGY]}
    found["topology"] += [path.read_bytes() for path in RECORDED.glob("*/topology.txt")]
    for release in RELEASES:
        folder = RECORDED / release
        for kind in ("node", "partition", "reservation"):
            paths = folder.glob(f"{kind}s.txt")
            found.setdefault(f"{kind}s", []).extend(path.read_bytes() for path in paths)
        found.setdefault("one node", []).extend(
            path.read_bytes() for path in folder.glob("scontrol_d_node_*.txt")
        )
        found.setdefault("config", []).extend(p.read_bytes() for p in folder.glob("config.txt"))
        found.setdefault("sacct", []).extend(p.read_bytes() for p in folder.glob("sacct*.txt"))
        found[f"{release}/jobs"] = [_few(path) for path in sorted(folder.glob("squeue*.json"))]
    return found


_TOPOLOGY = (
    b"SwitchName=core Level=1 LinkSpeed=1 Nodes=a[1-2],b[1-2] Switches=r[1-2]\n"
    b"SwitchName=r1 Level=0 LinkSpeed=1 Nodes=a[1-2]\n"
    b"SwitchName=r2 Level=0 LinkSpeed=1 Nodes=b1,b2\n"
)


def _few(path: Path) -> bytes:
    answer = json.loads(path.read_bytes())
    answer["jobs"] = answer["jobs"][:3]
    return json.dumps(answer).encode()


def scontrol_lines() -> bytes:
    """Nodes as scontrol prints them without ``-o``: a record on several lines."""
    return answers()["nodes"][0].replace(b" CPUTot", b"\n   CPUTot").replace(b" OS=", b"\n   OS=")


def site_configs() -> list[bytes]:
    """The shipped examples of sites, and one of an earlier release."""
    shipped = (path.read_bytes() for path in sorted((ROOT / "site_configs").glob("*.toml")))
    return [*shipped, OLD_SITE]


def sacct_without_bars() -> list[bytes]:
    """Recorded accounting without the lines in which a name holds the separator."""
    return [
        b"\n".join(line for line in text.split(b"\n") if line.count(b"|") in (0, 13))
        for text in answers()["sacct"]
    ]


def jct() -> bytes:
    """Times of all jobs of a shipped trace, as a simulation writes them."""
    lines = (ROOT / "slurm_hadar" / "simulator" / "data" / "mixed_60.csv").read_text().splitlines()
    jobs = [line.split(",") for line in lines if line[:1].isdigit()]
    rows = [f"{job[0]},{job[1]},{float(job[1]) + 9000},9000" for job in jobs]
    return "\n".join(["job_id,arrival_s,finish_s,jct_s", *rows[:-1], f"{jobs[-1][0]},0,,"]).encode()


def gavel() -> bytes:
    """The first jobs of a shipped trace of Gavel's."""
    path = ROOT / "slurm_hadar" / "simulator" / "data" / "trace_120.csv"
    return b"".join(path.read_bytes().splitlines(keepends=True)[:6])


@cache
def journal() -> bytes:
    """The controller's file with every table filled, in one piece."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        store = Store.open(folder)
        for number in range(20):
            entry = store.begin(f"{number}", "move", "asked", CLOSED, {"to": {"v100": number}})
            store.advance(entry, "requeued", CLOSED)
            if number % 2:
                store.end(entry, "it runs where it was sent", CLOSED)
        store.decisions.record(
            [Decision(f"{n}", CLOSED, "2 v100", "pays by 1.3") for n in range(20)]
        )
        store.serve({f"{n}": (2, CLOSED) for n in range(20)}, CLOSED)
        store.keep_steering("3", "[hadarplan;t=1]")
        store.keep_policy_state("hadar", {"prices": [1.0, 2.0], "seen": {"1": 2}})
        measured = MeasuredStore(store.connection)
        GpuUses(store.connection).record((7, "resnet18", 64), "v100", TRAINING_USE, 60.0)
        for gpus in range(1, 9):
            measured.record(RateSample("resnet18", "v100", gpus, 64, 100.0 * gpus, 60.0, 7, "3"))
        store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.close()
        return (folder / "hadar.sqlite").read_bytes()


@cache
def checkpoint() -> bytes:
    """A small training's checkpoint."""
    import torch

    from slurm_hadar.runtime import checkpoint as own
    from slurm_hadar.runtime.attempts import Attempt

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "checkpoint.pt"
        parts = {"model": torch.nn.Linear(3, 2).state_dict()}
        attempt = Attempt.begin(path, "", 0)
        own.save(attempt, {"parts": parts, "random": own.random_state(), "state": "{}"})
        return path.read_bytes()


def as_database(data: bytes, path: Path) -> sqlite3.Connection:
    """The bytes of a database as a file, and a plain connection to it."""
    path.write_bytes(data)
    return sqlite3.connect(path, isolation_level=None)
