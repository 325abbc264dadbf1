"""What one user may write of his own jobs so that it can be read, and is extreme all the same.

Damaged text mostly ends in the parser; this comes through it, to policies and words.
"""

import json
import random
from collections.abc import Mapping
from typing import Any

from benchmarks.fuzz import mutations

NOW = 1.8e9
EVE, ANN, BOB = "1", "3", "4"
"""Jobs: that of whoever writes these values, and of two others who do not."""
_NESTS = ("(" * 900, "(" * 340 + "a" + ")" * 340, "(" * 20 + "v100" + ")" * 20)
_ANY_INT = (0, 1, 2, 7, 10**6, 2**31 - 1, 2**31, 2**32 - 2, 10**12, 10**18)
_ANY_S = (0, 1, 10**9, int(NOW) - 1, int(NOW), int(NOW) + 250, 2**31 - 1, 2**32 - 2, 10**11)
_NAMES = (
    "", "train", "-", "../..", "$(id)", "a'b\"c", "a\nb", "a\x1b[2Jb", "\u202eba", mutations.PLANES,
    "\ud800", "%", "[bold]x[/bold]", "[/nothing]", "x" * 1024, "\N{COMBINING ACUTE ACCENT}" * 50,
)  # fmt: skip
DECLARED: Mapping[str, tuple[str, ...]] = {
    "types": ("any", "v100", "k80,v100", "nope", "a" * 200),
    "model": ("resnet18", "ResNet-18", "~x", "m", "x" * 100, "-"),
    "gpus": ("1", "2", "1-2", "1-1000000", "3-9", "1000000", "999999-1000000"),
    "batch": ("1", "64", "64:128", "1:1000000000000", "1000000000000"),
    "samples": ("1", "1e18", "5e6", "1e-3"),
    "epochs": ("1", "1e9"),
    "dataset_size": ("1", "1e9"),
    "fork": ("1", "1-2", "1-8", "1-1000000", "999999-1000000"),
    "nodes": ("1", "1-2", "1-1000000"),
    "cpus": ("1", "1-64", "1-1000000"),
    "mem": ("1", "1-1024", "1-1000000000"),
    "gpu_mem": ("1", "1000000000"),
    "tasks": ("1", "7", "1000000"),
    "restart_cost": ("0", "5e-324", "1e-320", "1e6", "1e300"),
    "checkpoint": ("yes", "no"),
    "pin": ("yes", "no"),
    "off": ("yes", "no"),
    "lease": ("yes", "no"),
    "backfill": ("yes", "no"),
    "constraint": (*_NESTS, "v100|k80", "a&b", "%28" * 340, "!a", "[a|b]"),
    "partitions": ("gpu", "v100,k80", "gpu,idle,nowhere", ","),
}
_RATES = (0.0, 5e-324, 1e-320, 1e-300, 1e-6, 1.0, 12.5, 1e9, 9.9e11, 1e308, float("inf"))
PROGRESS: Mapping[str, tuple[Any, ...]] = {
    "time": (0.0, NOW - 1, NOW, NOW + 3600, 1e11),
    "started": (0.0, NOW - 100, 1e11),
    "restarts": (0, 1, 10**6),
    "samples": (0, 1, 10**6, 10**18),
    "rate": _RATES,
    "window_s": (0.0, 5e-324, 1e-9, 1.0, 60.0, 1e9),
    "batch": (0, 1, 64, 10**12),
    "gpus": (0, 1, 10**6),
    "noise_scale": (None, 0.0, 5e-324, 50.5, 1e18),
    "restart_s": (None, 0.0, 5e-324, 4.5, 1e18),
    "lost": (0, 10**18),
    "finished": (True, False),
    "model": ("m", "", "x" * 200),
    "checkpoint": (None, {"samples": 10**18, "time": 0.0, "seconds": 1e9}),
    "ack": (None, {"save": "n", "time": 1e11, "samples": 10**18}),
}
JOB: Mapping[str, tuple[Any, ...]] = {
    "name": _NAMES,
    "current_working_directory": _NAMES,
    "dependency": ("", "afterok:1", "singleton", "x" * 1000),
    "partition": ("gpu", "idle", "gpu,idle", "k80", "v100,k80,gpu", ",", "nowhere", ""),
    "features": ("", "v100", "a&b", "[a|b]", *_NESTS),
    "required_nodes": ("", "v1", "v[1-2]", "nowhere"),
    "excluded_nodes": ("", "v1", "v[1-2],k1,k2,p1,p2", "n[1-1000]"),
    "time_limit": (None, 0, 1, 60, 525_600, 2**32 - 2),
    "priority": (0, 1, 2**32 - 2),
    "cpus": _ANY_INT,
    "cpus_per_task": _ANY_INT,
    "tasks": _ANY_INT,
    "node_count": _ANY_INT,
    "memory_per_node": _ANY_INT,
    "memory_per_cpu": _ANY_INT,
    "restart_cnt": (0, 1, 2**31),
    "submit_time": _ANY_S,
    "eligible_time": _ANY_S,
    "start_time": _ANY_S,
    "end_time": _ANY_S,
    "tres_per_node": ("", "gpu:1", "gpu:2", "gpu:v100:1,gpu:k80:1", "gpu:1000000000"),
    "tres_per_job": ("", "gpu:1", "gpu:4", "gpu:1000000000"),
    "tres_per_task": ("", "gpu:1", "gpu:1000000"),
    "tres_req_str": ("", "cpu=1,node=2", "node=999999999"),
    "admin_comment": (
        "",
        "[hadarplan;t=1e11;on=v100:1;lease=1;moves=1000000000]",
        "[hadarplan;t=1;not=Partition,Features;was.Partition=nowhere;set.Partition=,k80,]",
    ),
    "state_reason": ("None", "BeginTime", "Priority", "QOSMaxJobsPerUserLimit", "JobHeldUser"),
    "job_state": ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "PREEMPTED", "nonsense"),
    "requeue": (True, False),
    "batch_flag": (True, False),
    "shared": (None, "none"),
    "qos": ("", "normal", "x" * 200),
    "account": ("", "phys", "x" * 200),
}


def damage(draw: random.Random, data: bytes) -> bytes:
    """Extreme values in eve's jobs, their declarations and their progress; nowhere else."""
    scene = json.loads(data)
    mine = [job for job in scene["jobs"] if job["user_name"] == "eve"]
    for job in mine:
        for key in draw.sample(list(JOB), draw.choice((0, 0, 1, 2, 5))):
            job[key] = draw.choice(JOB[key])
        if draw.randrange(4):
            keys = draw.sample(list(DECLARED), draw.choice((1, 3, 6, 10)))
            said = dict(word.split("=") for word in job["comment"][1:-1].split()[1:])
            said |= {key: draw.choice(DECLARED[key]) for key in keys}
            words = " ".join(f"{key}={value}" for key, value in said.items())
            job["comment"] = f"{draw.choice(_NAMES)}[hadar1 {words}]"
    # What is reported of speed goes furthest: into the profiles, and from there to all users.
    keys = [*draw.sample(list(PROGRESS), draw.choice((0, 1, 2, 6))), draw.choice(("rate", "lost"))]
    for key in keys:
        scene["progress"][key] = draw.choice(PROGRESS[key])
    return json.dumps(scene).encode()
