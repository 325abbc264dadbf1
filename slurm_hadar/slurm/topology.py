"""Racks as ``scontrol show topology`` tells of them, where the site has a tree.

Seen on 22.05.8 and 24.11.5: one line a switch, ``SwitchName=r1 Level=0 LinkSpeed=1 Nodes=a[1-2]``;
switches of a higher level name those below as well. Nothing at all where the topology is flat.
"""

import re

from slurm_hadar.slurm import hosts

_LEAF = re.compile(r"SwitchName=(\S+)\s.*?\bLevel=0\b.*?\bNodes=(\S+)")


def racks(text: str) -> dict[str, str]:
    """Node -> its leaf switch; empty where there is no tree.

    A node on several leaf switches counts to the first of them. Lines that are no leaf switch
    (upper levels, blocks of topology/block) say nothing about racks. Raises SlurmError for a list
    of nodes that cannot be read.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LEAF.match(line.strip())
        if match:
            for node in hosts.expand(match[2]):
                found.setdefault(node, match[1])
    return found
