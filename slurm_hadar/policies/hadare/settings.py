"""The settings that HadarE has beside Hadar's."""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.policies.hadar.settings import Settings


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """``hadar``: what both policies know; ``min_stay_s`` and ``gain_over_cost`` hold for copies
    too."""

    hadar: Settings
    averaging: float = 0.02
    """Part of their speed that copies lose to averaging. The default is assumed: it is what the
    runtime allows itself, by rounds so long that averaging and saving take no more."""

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "ForkSettings":
        """Raises :class:`UsageError` naming the option at fault."""
        value = options.get("averaging", cls.__dataclass_fields__["averaging"].default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise UsageError(
                f"policy option averaging: {value!r} is no part of the speed; "
                "it must be at least 0 and below 1"
            )
        return cls(Settings.read(options), float(value))
