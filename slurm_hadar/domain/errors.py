"""Errors that reach a person: one clear sentence, never a traceback."""


class HadarError(Exception):
    """Something failed; the message says what, where, and what to do. Exit code 1."""

    exit_code = 1


class UsageError(HadarError):
    """The arguments or the input of the user are wrong. Exit code 2."""

    exit_code = 2


class UnknownJobError(UsageError):
    """There is no such job, or none that the user may see. Exit code 1."""

    exit_code = 1


class SlurmError(HadarError):
    """Slurm refused or did not answer.

    ``retry`` says whether the same call may succeed later (Slurm busy, a lock, EAGAIN).
    """

    def __init__(self, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.retry = retry


class JustStartedError(SlurmError):
    """slurmctld answers, and does not know its nodes yet: it was down a moment ago."""
