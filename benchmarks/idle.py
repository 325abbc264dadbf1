"""Efficiency of the policies for idle nodes, side by side, under both charges.

``python -m benchmarks.idle --fragments FRAGMENTS.csv.gz --trainers TRAINERS.json --model NAME
--copies 1000 --nodes 0 --nodes 1024``: a recorded trace; 0 nodes are all of them. Without
``--fragments`` a generated week, without ``--trainers`` a made-up curve that is nearly linear up to
64 nodes. ``--shuffle`` numbers the nodes at random, so that no policy knows neighbours. One JSON
object per line, in the order of ``--nodes``, charge, policy, Tfwd.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from slurm_hadar.policies.bftrainer.records import Trainer
from slurm_hadar.simulator.idle.fragments import generate, read_fragments
from slurm_hadar.simulator.idle.replay import IdleTerms, policy_names, replay
from slurm_hadar.simulator.idle.trainers import TrainerWork, TrainerWorkload, read_trainers


def made_up(copies: int, at_once: int) -> TrainerWorkload:
    """Trainers with 2,700 samples/s on one node and 85% of linear on 64."""
    count = np.arange(65)
    rate = 2700.0 * count * (1 - 0.15 * np.log2(np.maximum(count, 1)) / 6)
    one = TrainerWork(Trainer("made-up", rate[None, :], 18.0, 12.0), 1.3e8, 0.0)
    return TrainerWorkload((one,) * copies, at_once)


def main() -> None:
    """Read the options, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fragments", type=Path)
    parser.add_argument("--trainers", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--copies", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--tfwd", type=float, action="append")
    parser.add_argument("--policy", action="append", choices=policy_names())
    parser.add_argument("--charge", action="append", choices=("paper", "strict"))
    parser.add_argument("--shuffle", action="store_true", help="neighbours are not neighbours")
    given = parser.parse_args()
    seen = read_fragments(given.fragments) if given.fragments else generate(seed=given.seed)
    work = (
        read_trainers(given.trainers, given.model, given.copies, given.at_once)
        if given.trainers
        else made_up(given.copies, given.at_once)
    )
    for nodes in given.nodes or [0]:
        part = seen.first(nodes) if nodes else seen
        if given.shuffle:
            order = np.random.default_rng(given.seed).permutation(len(part.names))
            part = replace(part, node=order[part.node])
        for charge in given.charge or ["paper", "strict"]:
            for policy in given.policy or policy_names():
                for tfwd in given.tfwd or [120.0]:
                    found = replay(part, work, policy, IdleTerms(tfwd, charge)).summary()
                    what = {"nodes": nodes or len(part.names), "charge": charge, "tfwd_s": tfwd}
                    print(json.dumps(what | found), flush=True)


if __name__ == "__main__":
    main()
