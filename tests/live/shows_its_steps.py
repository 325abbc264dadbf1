"""A training as people write it: it saves now and then, and shows how far it is.

Arguments: folder, steps, and --tensorboard: by TensorBoard, not by its output.
"""

import os
import sys
import time
from pathlib import Path

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
log = None
if "--tensorboard" in sys.argv:
    from torch.utils.tensorboard import SummaryWriter

    log = SummaryWriter(str(folder / "runs" / f"{os.environ['SLURM_JOB_ID']}"), flush_secs=1)
saved = folder / "last.ckpt"
step = int(saved.read_text()) if saved.exists() else 0
with (folder / "begun").open("a") as begun:
    print(os.environ["SLURMD_NODENAME"], step, file=begun)
while step < steps:
    time.sleep(0.1)
    step += 1
    with (folder / "steps").open("a") as done:
        print(step, file=done)
    if log is not None:
        log.add_scalar("train/loss", 1 / step, step)
    else:
        print(f"Epoch {step // 100} step={step}/{steps} loss {1 / step:.3f}", flush=True)
    if step % 60 == 0:
        (folder / "new").write_text(str(step))
        (folder / "new").rename(saved)
