"""``hadar profile``: how a training's speed hangs on CPUs and memory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar.cli.common import JsonOption, print_json
from slurm_hadar.cli.options_record import takes
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.profiles import cpu_table, optimistic
from slurm_hadar.profiles.optimistic import DataSet, RateMeasurement
from slurm_hadar.profiles.optimistic_run import (
    PATTERN,
    Trial,
    allowed_cpus,
    disk_bandwidth,
    measure,
    memory_bandwidth,
    size_of,
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(profile)


@dataclass(frozen=True)
class ProfileOptions:
    """What the caller typed."""

    command: Annotated[
        list[str],
        typer.Argument(help="-- and the training's command; {cpus} in it: the number of CPUs."),
    ]
    model: Annotated[str, typer.Option(help="Model name in the table and in #HADAR model=.")]
    out: Annotated[Path | None, typer.Option(help="The table to write.")] = None
    gpus: Annotated[int, typer.Option(min=0, help="GPUs; 0: those of the allocation, else 1.")] = 0
    cpus: Annotated[int, typer.Option(min=0, help="Most CPUs per GPU; 0: all there are.")] = 0
    seconds: Annotated[float, typer.Option(help="Seconds measured at each point.")] = 60.0
    warmup: Annotated[float, typer.Option(help="Warm-up after the first rate, s.")] = 20.0
    start: Annotated[float, typer.Option(help="Longest wait for the first rate, s.")] = 300.0
    pattern: Annotated[
        str,
        typer.Option(
            help="Regular expression of the rate in the output. Default: such as 812 images/s."
        ),
    ] = ""
    mem_gb: Annotated[
        float, typer.Option(help="Full memory per GPU; 0: that of the allocation.")
    ] = 0.0
    dataset: Annotated[
        Path | None, typer.Option(help="The data set. Without it memory is not measured.")
    ] = None
    samples: Annotated[int, typer.Option(min=0, help="Samples in the data set.")] = 0
    disk_mb_per_s: Annotated[float, typer.Option(help="0: measured.")] = 0.0
    as_json: JsonOption = False


@takes(ProfileOptions)
def profile(given: ProfileOptions) -> None:
    """Measure the speed of a training at a few CPU counts. Run it inside an allocation, with all
    the CPUs and the memory that the job may ever get."""
    _check(given)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = given.gpus or len([gpu for gpu in visible if gpu]) or 1
    there = len(allowed_cpus()) // number
    if there < 1 or given.cpus > there:
        raise UsageError(
            f"{len(allowed_cpus())} CPUs are here for {number} GPUs; ask Slurm for more "
            "(--cpus-per-task), or give fewer with --cpus or --gpus"
        )
    trial = Trial(
        tuple(given.command),
        number,
        given.warmup,
        given.seconds,
        given.start,
        given.pattern or PATTERN,
    )
    data = _data(given.dataset, given.samples, given.disk_mb_per_s)

    def one(count: int) -> RateMeasurement:
        point = measure(trial, count)
        if not given.as_json:
            typer.echo(f"{count} CPUs per GPU: {point.rate:.5g} samples/s ({point.seconds:.0f} s)")
        return point

    points = optimistic.profile(given.cpus or there, one)
    memory = given.mem_gb or _memory_gb() / number
    rows = optimistic.rows(given.model, number, points, memory, data)
    spent, saved = optimistic.saved_min(points, len(optimistic.MEMORY_PARTS) if data else 1)
    if given.out is not None:
        _write(given.out, cpu_table.text(rows, {"source": f"hadar profile of {given.model}"}))
    if given.as_json:
        print_json(
            "profile",
            {
                "model": given.model,
                "gpus": number,
                "points": [
                    {"cpus_per_gpu": p.cpus, "samples_per_s": p.rate, "seconds_s": p.seconds}
                    for p in points
                ],
                "columns": cpu_table.COLUMNS,
                "rows": rows,
                "spent_min": spent,
                "saved_min": saved,
            },
        )
        return
    typer.echo(
        f"{len(points)} points in {spent:.1f} min; every number of CPUs"
        f"{' and amount of memory' if data else ''} would have taken {saved:.1f} min more"
    )
    if given.out is not None:
        typer.echo(f"{given.out} can be named under [profiles] cpu_tables")


def _check(given: ProfileOptions) -> None:
    """Raises UsageError for a number that cannot be."""
    for name, value in (("--seconds", given.seconds), ("--start", given.start)):
        if not 0.0 < value <= 1e5:
            raise UsageError(f"{name} {value:g}: it must be above 0 and at most 100000")
    for name, value in (
        ("--warmup", given.warmup),
        ("--mem-gb", given.mem_gb),
        ("--disk-mb-per-s", given.disk_mb_per_s),
    ):
        if not 0.0 <= value <= 1e7:
            raise UsageError(f"{name} {value:g}: it must be 0 or more")


def _data(path: Path | None, samples: int, disk_mb_per_s: float) -> DataSet | None:
    if path is None:
        return None
    if not samples:
        raise UsageError("--dataset also needs --samples, the number of samples in it")
    size = size_of(path)
    disk = disk_mb_per_s * 1e6 or disk_bandwidth(path)
    return DataSet(samples, size, disk, memory_bandwidth)


def _memory_gb() -> float:
    """Memory of the allocation, else of the machine."""
    megabytes = os.environ.get("SLURM_MEM_PER_NODE", "")
    if megabytes.isdecimal() and int(megabytes):
        return int(megabytes) / 1024.0
    each, cpus = os.environ.get("SLURM_MEM_PER_CPU", ""), os.environ.get("SLURM_CPUS_ON_NODE", "")
    if each.isdecimal() and cpus.isdecimal() and int(each) and int(cpus):
        return int(each) * int(cpus) / 1024.0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise HadarError(f"{path} cannot be written: {error.strerror}") from None
