"""Today's prices of GPU types, as the controller published them, for one submit: the exchange
folder is asked for them, and for whether a controller acts.

What is missing, stale, hostile or damaged costs nothing: there is no price then.
"""

from __future__ import annotations

import os

from slurm_hadar.cli.wrapper_site import (
    SiteError,
    controller_is_active,
    fresh_file,
    number,
    takes_lists,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slurm_hadar.cli.node_fit import Node
    from slurm_hadar.cli.wrapper_site import WrapperSite

_LEAST_ARRIVING = 0.25
"""Part of the free GPUs that may be asked for at once at any time. With more, one job that comes
alone would leave its best type to others too often."""

_ACTS_ONLY = b"acts"


class Today:
    """What is known of GPU types today. ``prices``: type -> price in parts of a job's best speed;
    ``shared``: types that unmanaged jobs accept beside others; ``nodes``: partition -> its largest
    usable nodes, empty where nothing is known of them; ``default``: the partition of a job that
    names none, empty where that is not known; ``kept``: the partitions in which this user's jobs
    stay as typed; ``asleep``: those in which a job would wait for a node to boot."""

    __slots__ = ("asleep", "default", "kept", "nodes", "prices", "shared")

    def __init__(
        self,
        prices: Mapping[str, float] | None = None,
        shared: frozenset[str] = frozenset(),
        nodes: Mapping[str, Sequence[Node]] | None = None,
        default: str = "",
        kept: frozenset[str] = frozenset(),
        asleep: frozenset[str] = frozenset(),
    ) -> None:
        self.prices = prices or {}
        self.shared = shared
        self.nodes = nodes or {}
        self.default = default
        self.kept = kept
        self.asleep = asleep


class ExchangeQuery:
    """What one submit asks the exchange folder of ``site``. :meth:`begin` is optional: it starts
    the query early, so that the answer comes while something else is done."""

    __slots__ = ("_acts", "_answer", "_site")

    def __init__(self, site: WrapperSite) -> None:
        self._site = site
        self._acts: bool | None = None
        self._answer: Callable[[], bytes] | None = None

    def begin(self) -> None:
        """Ask now. Where that fails, the call that needs an answer asks again and reports it."""
        try:
            self._answer = _query(self._site)
        except OSError:
            self._answer = None

    def today(self, moves: bool, warn: Callable[[str], None]) -> Today | None:
        """What is known of GPU types; None where no controller acts that wants one more list of
        partitions, or the folder does not answer. ``moves``: see :func:`today`; ``warn`` gets the
        message where the folder does not answer."""
        import json

        from slurm_hadar.folder_probe import Unanswered

        try:
            text = self._read()
        except Unanswered as error:
            warn(f"{self._site.exchange_dir}: {error.strerror}; the job is submitted without it")
            return None
        except OSError:
            return None
        self._acts = bool(text)
        return None if text in (b"", _ACTS_ONLY) else today(json.loads(text), moves)

    def has_active_controller(self) -> bool:
        """Whether a controller acts; yes where the folder does not answer."""
        if self._acts is not None:
            return self._acts
        try:
            return bool(self._read())
        except OSError:
            return True

    def _read(self) -> bytes:
        """The answer to the query that has begun, else to a new one. Raises OSError."""
        answer, self._answer = self._answer or _query(self._site), None
        return answer()


def _query(site: WrapperSite) -> Callable[[], bytes]:
    """Begin to ask the exchange folder. What this returns waits for the answer: the JSON of today's
    prices; ``_ACTS_ONLY`` where a controller acts that wants no list of partitions; nothing where
    none acts. Raises OSError."""
    import json
    import time

    from slurm_hadar.folder_probe import ask

    def look() -> bytes:
        now = time.time()
        if not takes_lists(site, now):
            return _ACTS_ONLY if controller_is_active(site, now) else b""
        return json.dumps(fresh_file(site, "prices.json", now)).encode()

    return ask(site.exchange_dir, look)


def today(
    published: Mapping[str, object] | None, moves: bool, draw: Callable[[], float] | None = None
) -> Today:
    """What the controller ``published`` in prices.json; nothing where that cannot be believed.

    Those who submit between two ticks all read the same file. So each counts a random part of the
    GPUs that are usually asked for in that time as taken already, or of a part of the free ones
    where that is more: what came lately says little of a burst. Not so one that never ``moves``:
    it would stay on the slower type. ``draw``: a number from 0 to 1.
    """
    types = published.get("types") if published else None
    if published is None or not isinstance(types, dict):
        return Today()
    draw = draw or _draw
    try:
        arriving = number(published, "arriving")
        if moves:
            arriving = max(arriving, _LEAST_ARRIVING * _free(types))
        prices = {str(kind): _price(one, draw() * arriving) for kind, one in types.items()}
        nodes = _nodes(published.get("nodes", {}))
        kept = _kept(published.get("kept", {}))
        asleep = _asleep(published.get("asleep", []))
    except (SiteError, ValueError, ArithmeticError):
        return Today()
    shared = frozenset(kind for kind in prices if types[kind].get("shared") is True)
    default = published.get("default")
    return Today(prices, shared, nodes, default if isinstance(default, str) else "", kept, asleep)


def _asleep(source: object) -> frozenset[str]:
    if not isinstance(source, list):
        raise SiteError("asleep is no list")
    return frozenset(map(str, source))


def _kept(source: object) -> frozenset[str]:
    """The partitions of which none is to be replaced for us. ``source``: partition -> marks of
    users, None: all."""
    if not isinstance(source, dict):
        raise SiteError("kept is no object")
    if not source:
        return frozenset()
    import pwd
    from binascii import crc32

    try:
        own = crc32(os.fsencode(pwd.getpwuid(os.getuid()).pw_name))
    except KeyError:
        return frozenset(source)
    return frozenset(
        name for name, some in source.items() if not isinstance(some, list) or own in some
    )


def _nodes(source: object) -> dict[str, list[Node]]:
    if not isinstance(source, dict):
        raise SiteError("nodes is no object")
    if not all(isinstance(some, list) for some in source.values()):
        raise SiteError("nodes of a partition are no list")
    return {str(name): [_node(one) for one in some] for name, some in source.items()}


def _node(source: object) -> Node:
    if not isinstance(source, list) or len(source) != 3:
        raise SiteError("a node is no list of three numbers")
    gpus, cpus, memory = (int(number({"": one}, "")) for one in source)
    return gpus, cpus, memory


def _free(types: Mapping[str, object]) -> float:
    return sum(number(one, "free") for one in types.values() if isinstance(one, dict))


def _price(source: object, taken: float) -> float:
    """Hadar's price k(g) = Umin (Umax / Umin)^(g / c) (arXiv 2503.10918, recalled)."""
    if not isinstance(source, dict):
        raise SiteError("a type is no object")
    least, most = number(source, "least"), number(source, "most")
    gpus, free = number(source, "gpus"), number(source, "free")
    if not (1e-9 < least <= most <= 1e9 and 0.0 <= free <= gpus and gpus > 0):
        raise SiteError("a price is no price")
    used = min(gpus, gpus - free + taken)
    return float(least * (most / least) ** (used / gpus))


def _draw() -> float:
    # random alone would cost a submit several milliseconds.
    return int.from_bytes(os.urandom(4), "big") / 2**32
