"""Equal shares: each trainer gets the same number of idle nodes. A baseline, not BFTrainer."""

import numpy as np

from slurm_hadar.policies.bftrainer.idle_survival import IdleSurvival
from slurm_hadar.policies.bftrainer.places import oldest_to_oldest
from slurm_hadar.policies.bftrainer.records import IdleMap, IdleView


def decide(view: IdleView, survival: IdleSurvival) -> tuple[IdleMap, IdleSurvival]:
    """Shares differ by at most one node, except for trainers that can use fewer. Types and
    rescaling costs are ignored."""
    if not view.trainers:
        return IdleMap(view.holder), survival
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
    return IdleMap(oldest_to_oldest(view, counts, by_age=False)), survival
