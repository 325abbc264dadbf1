"""Messages about slurmdbd, which sacct and sacctmgr ask: its silence is no fault of slurmctld."""

from slurm_hadar.domain.errors import SlurmError

_CURE = (
    "see systemctl status slurmdbd on its host and restart it there; sacctmgr show cluster tells "
    "whether it answers"
)
_SILENT = (
    "no answer within",
    "timed out",
    "connection refused",
    "connect failure",
    "unable to connect to database",
    "problem talking to the database",
    "persistinit",
    "persistent connection",
)
"""What sacct and sacctmgr say of a slurmdbd that is silent or not there."""


def database_message(error: SlurmError) -> str:
    """What an error of sacct or sacctmgr means, in a clause that ends without a full stop."""
    if is_silent(error):
        return f"slurmdbd, which keeps Slurm's accounting, does not answer ({error})"
    return str(error)


def database_cure(error: SlurmError) -> str:
    """What to do about it."""
    return _CURE if is_silent(error) else "run the command again when sacctmgr answers"


def is_silent(error: SlurmError) -> bool:
    """Whether slurmdbd did not answer, rather than refuse."""
    said = str(error).lower()
    return any(word in said for word in _SILENT)
