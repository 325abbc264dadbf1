"""The fixtures of the live tests, and on which Slurms they run."""

from slurms import (
    make_sandbox,
    no_output_of_jobs,
    pyslurm_probed_once,
    pytest_generate_tests,
    sandbox,
    sandbox_each,
    slurm_prefix,
)

__all__ = [
    "make_sandbox",
    "no_output_of_jobs",
    "pyslurm_probed_once",
    "pytest_generate_tests",
    "sandbox",
    "sandbox_each",
    "slurm_prefix",
]
