"""Equal shares: every trainer gets the same part of the idle nodes. A baseline, not BFTrainer."""

import numpy as np

from slurm_hadar.policies.bftrainer.idle_survival import IdleSurvival
from slurm_hadar.policies.bftrainer.places import oldest_to_oldest
from slurm_hadar.policies.bftrainer.records import IdleMap, IdleView


def decide(view: IdleView, stays: IdleSurvival) -> tuple[IdleMap, IdleSurvival]:
    """Shares differ by one node at most, but for trainers that can use fewer. Types and what
    rescaling costs are not looked at."""
    if not view.trainers:
        return IdleMap(view.holder), stays
    most = np.array([one.most for one in view.trainers], np.int64)
    counts = np.zeros(len(most), np.int64)
    left = view.budget()
    spent: dict[str, int] = {}
    open_ = list(range(len(most)))
    while left and open_:
        still = []
        for j in open_:
            user = view.trainers[j].user
            cap = view.user_caps.get(user)
            if not left or counts[j] >= most[j] or (cap is not None and spent.get(user, 0) >= cap):
                continue
            counts[j] += 1
            spent[user] = spent.get(user, 0) + 1
            left -= 1
            still.append(j)
        open_ = still
    return IdleMap(oldest_to_oldest(view, counts, by_age=False)), stays
