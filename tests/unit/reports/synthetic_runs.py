"""Runs made up for the reports' tests: a list scheduler on three types of GPUs."""

import heapq
import random

from slurm_hadar.reports.run import ClusterGpu, JobTimes, Run, TimelineSegment

SPEED = {"v100": 4.0, "p100": 2.5, "k80": 1.0}


def run(name: str, order: tuple[str, ...], moves: bool = False, jobs: int = 14) -> Run:
    """Jobs go to the first free node in an order of types; ``moves``: long ones leave the k80."""
    random_ = random.Random(7)
    nodes = [("v1", "v100"), ("v2", "v100"), ("p1", "p100"), ("k1", "k80"), ("k2", "k80")]
    gpus = tuple(ClusterGpu(node, kind, i) for node, kind in nodes for i in range(2))
    free = [(0.0, order.index(kind), node, kind) for node, kind in nodes]
    heapq.heapify(free)
    segments: list[TimelineSegment] = []
    times: list[JobTimes] = []
    for i in range(jobs):
        label = f"{random_.choice(['resnet18', 'transformer', 'lm', 'recommend'])}-{i}"
        work = random_.choice([120, 200, 340, 520])
        submit = 4.0 * i
        at, rank, node, kind = heapq.heappop(free)
        start = max(at, submit) + 2
        end = start + work / SPEED[kind]
        job = str(100 + i)
        if moves and kind == "k80" and work > 150:
            stop = start + 0.25 * (end - start)
            segments.append(TimelineSegment(job, label, node, (0, 1), start, stop, 0, kind))
            heapq.heappush(free, (stop, rank, node, kind))
            at, rank, node, kind = min(f for f in free if f[3] != "k80")
            free.remove((at, rank, node, kind))
            heapq.heapify(free)
            start = max(at, stop + 6)
            end = start + 0.75 * work / SPEED[kind]
            segments.append(TimelineSegment(job, label, node, (0, 1), start, end, 1, kind))
        else:
            segments.append(TimelineSegment(job, label, node, (0, 1), start, end, 0, kind))
        heapq.heappush(free, (end, rank, node, kind))
        times.append(JobTimes(job, label, submit, end, True))
    last = max(s.end_s for s in segments)
    samples = tuple(
        (float(t), sum(400 * SPEED[s.type] for s in segments if s.start_s <= t < s.end_s))
        for t in range(0, int(last) + 1, 2)
    )
    return Run(
        name,
        f"{name}: what it is, in a sentence.",
        gpus,
        tuple(times),
        tuple(segments),
        samples,
        0 if moves else 512,
    )
