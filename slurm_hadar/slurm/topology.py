"""Racks as ``scontrol show topology`` tells of them, where the site has a tree.

Seen on 22.05.8 and 24.11.5: one line a switch, ``SwitchName=r1 Level=0 LinkSpeed=1 Nodes=a[1-2]``;
switches of a higher level name those below as well. Nothing at all where the topology is flat.
"""

import re

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import hosts

_SWITCH = re.compile(r"SwitchName=(\S+)\s")
_LEVEL = re.compile(r"\bLevel=0\b")
_NODES = re.compile(r"\bNodes=(\S+)")

_MOST_NAMED = 10 * hosts.MOST_NODES
"""A node hangs on one leaf switch, or on a few."""


def racks(text: str) -> dict[str, str]:
    """Node -> its leaf switch; empty where there is no tree.

    A node on several leaf switches counts to the first of them. Lines that are no leaf switch
    (upper levels, blocks of topology/block) say nothing about racks. Raises SlurmError for a list
    of nodes that cannot be read.
    """
    found: dict[str, str] = {}
    named = 0
    for line in text.splitlines():
        line = line.strip()
        switch = _SWITCH.match(line)
        level = _LEVEL.search(line, switch.end()) if switch else None
        nodes = _NODES.search(line, level.end()) if level else None
        if switch and nodes:
            names = hosts.expand(nodes[1])
            named += len(names)
            if named > _MOST_NAMED:
                raise SlurmError(
                    f"scontrol shows more than {_MOST_NAMED} nodes on leaf switches, the limit"
                )
            for node in names:
                found.setdefault(node, switch[1])
    return found
