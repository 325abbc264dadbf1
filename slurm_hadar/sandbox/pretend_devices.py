"""GPUs that Slurm gives out though the machine has none: links to ``/dev/null`` named in gres.conf.

How fast a training is on them is in :mod:`.gpu_emulation`.
"""

from pathlib import Path

from slurm_hadar.sandbox.layout import Layout


def make_devices(folder: Path, gpus: int) -> None:
    """``gpu0``, ``gpu1``, ... in ``folder``. Raises OSError."""
    for number in range(gpus):
        (folder / f"gpu{number}").symlink_to("/dev/null")


def gres_conf(layout: Layout, devices: Path, release: tuple[int, int]) -> str:
    """gres.conf: all nodes share the pretend devices in the folder ``devices``. ``release``: of
    Slurm."""
    lines = ["AutoDetect=off"] if release >= (23, 11) else []
    for group in layout.groups:
        first = 0
        for kind, count in group.types.items():
            last = first + count - 1
            numbers = f"{first}" if count == 1 else f"[{first}-{last}]"
            lines.append(
                f"NodeName={group.expression} Name=gpu Type={kind} File={devices}/gpu{numbers}"
            )
            first += count
    return "\n".join(lines) + "\n"
