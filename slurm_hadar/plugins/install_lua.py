"""job_submit and cli_filter: our line in the site's scripts, whether the result is Lua, and the
scripts in slurm.conf.
"""

import ctypes
import ctypes.util
import re
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.plugins import slurm_conf
from slurm_hadar.plugins.changes import Change, read
from slurm_hadar.plugins.site_files import (
    FileChanges,
    Files,
    SiteFiles,
    bytes_of,
    resource,
    text_of,
)
from slurm_hadar.plugins.site_lua import SlurmFacts, site_lua
from slurm_hadar.slurm.limits import enforces_associations
from slurm_hadar.slurm.partition_lines import difference
from slurm_hadar.tuning import conf
from slurm_hadar.tuning.site import of_conf

SHARED = ("declaration.lua", "help.lua")
_KINDS = {
    "job-submit": ("job_submit", "JobSubmitPlugins"),
    "cli-filter": ("cli_filter", "CliFilterPlugins"),
}
_PLUGIN_FOLDERS = (
    "/usr/lib/*/slurm-wlm",
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/lib/*/slurm",
)
MARK = "-- slurm-hadar"
_NEW = "-- Written by 'hadar plugins install'; a site's own rules may be added above the last line."
_EMPTY = {
    "job_submit": """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
""",
    "cli_filter": """\
function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
""",
}
_LIBRARIES = ("lua5.1", "lua5.4", "lua5.3", "lua5.2", "lua", "luajit-5.1")


def add(site: SiteFiles, name: str, folder: Path | None, plan: FileChanges, files: Files) -> None:
    """Add one of the two. ``folder``: of Slurm's own plugins; None: found."""
    kind, setting = _KINDS[name]
    if missing := _lacks(site, f"{kind}_lua.so", folder):
        plan.by_hand.append(
            f"{name}: {missing} has no {kind}_lua.so, and Slurm would not start with it named "
            "(Debian: apt-get install slurm-wlm-basic-plugins); left out"
        )
        take_out(site, name, plan)
        return
    files[f"{kind}.lua"] = (resource(f"lua/{kind}.lua"), 0o644)
    names = [one for one in site.value(setting).split(",") if one]
    loaded = "lua" in names or f"{kind}/lua" in names
    wanted = f"{setting}={','.join([*names, 'lua'])}"
    if _write_line(site, kind, loaded, wanted, plan) and not loaded:
        _name_in(site, setting, wanted, plan)


def take_out(site: SiteFiles, name: str, plan: FileChanges) -> None:
    """Take our line out of the site's script; a script that is ours alone goes."""
    kind, _ = _KINDS[name]
    path = site.folder / f"{kind}.lua"
    before = read(path)
    if before is not None and MARK in text_of(before):
        text = text_of(before)
        gone = is_ours(text, kind)
        after = None if gone else bytes_of(without_line(text))
        plan.changes.append(Change(path, before, after, ours=gone))


def settings(
    site: SiteFiles, config: Config, untype: bool, plan: FileChanges, files: Files
) -> None:
    """What both of them load."""
    for name in SHARED:
        files[name] = (resource(f"lua/{name}"), 0o644)
    features = slurm_conf.node_features(site.text, site.path)
    plan.by_hand += [
        f"{name}: no node of {site.path} has the feature {gpu.feature}, so no job is sent to it"
        for name, gpu in config.gpu_types.items()
        if gpu.feature not in features
    ]
    facts = SlurmFacts(
        features,
        partitions=_may_be_listed(site, config, plan),
        unlike=_unlike(site, config, plan),
        default_partition=slurm_conf.default_partition(site.text, site.path),
        job_submit=_slurmctld_loads_ours(site, plan),
    )
    text = site_lua(config, facts, untype=untype)
    files["site.lua"] = (bytes_of(text), 0o644)


def _slurmctld_loads_ours(site: SiteFiles, plan: FileChanges) -> bool:
    """Whether the site's ``job_submit.lua`` has our line after these changes."""
    path = site.folder / "job_submit.lua"
    text = next((change.after for change in plan.changes if change.path == path), read(path))
    return text is not None and MARK in text_of(text)


def _unlike(site: SiteFiles, config: Config, plan: FileChanges) -> list[str]:
    """The groups whose partitions slurm.conf gives other access, limits or defaults than their
    members, each of which is said."""
    try:
        found = of_conf(conf.parse(site.text, site.path)).partitions
    except UsageError:
        # What is wrong with the file Slurm says itself.
        return []
    there = {partition.name: partition for partition in found}
    unlike = []
    for name, members in config.partitions.groups.items():
        for member in members:
            if not {name, member} <= there.keys():
                continue
            if key := difference(there[member], there[name]):
                unlike.append(name)
                plan.by_hand.append(
                    f"{name}: partition {member} has another {key}, so no job gets a list of "
                    "partitions for it"
                )
                break
    return unlike


def _may_be_listed(site: SiteFiles, config: Config, plan: FileChanges) -> set[str]:
    """The partitions that a job may get a list of; what keeps a group from it is said."""
    groups = config.partitions.groups
    if groups and (why := _why_no_lists(site)):
        plan.by_hand.append(f"{', '.join(groups)}: no job gets a list of partitions, since {why}")
        return set()
    known = slurm_conf.partitions(site.text, site.path)
    plan.by_hand += [
        f"{name}: {site.path} has no partition {', '.join(missing)}, so no job gets a list of "
        "partitions for it"
        for name, members in groups.items()
        if (missing := [one for one in members if one not in known])
    ]
    return known


def _why_no_lists(site: SiteFiles) -> str:
    """Why Slurm may reject a list of partitions where it takes the job in the one that its owner
    typed; empty where it does not. A plugin cannot submit the job once more, as hbatch does."""
    limits = site.value("EnforcePartLimits").upper()
    if limits in ("ALL", "YES"):
        return "Slurm with EnforcePartLimits=ALL rejects a job that does not fit each of them"
    if limits not in ("", "NO"):
        # An admin may close a partition at any time, for an hour or for some users.
        return f"Slurm with EnforcePartLimits={limits} rejects one that names a closed partition"
    if enforces_associations(enforced := site.value("AccountingStorageEnforce")):
        return (
            f"Slurm with AccountingStorageEnforce={enforced} rejects one from a user who has an "
            "association for some of them only; the controller gives it to waiting jobs"
        )
    return ""


def _write_line(site: SiteFiles, kind: str, loaded: bool, wanted: str, plan: FileChanges) -> bool:
    """Our line in the site's script. False where only a person should do that."""
    path = site.folder / f"{kind}.lua"
    before = read(path)
    fragment = site.ours / f"{kind}.lua"
    if before is None:
        text = with_line(empty(kind), fragment)
        plan.changes.append(Change(path, None, bytes_of(text)))
        return True
    ours, own = line(fragment), text_of(before)
    if is_ours(own, kind):
        plan.changes.append(Change(path, before, bytes_of(with_line(own, fragment))))
        return True
    if not loaded and MARK not in own:
        # It is unknown why it lies there: its rules must not come into force by our doing.
        plan.by_hand.append(
            f"{path} is there and Slurm does not load it. Move it away and type this again; or, if "
            f"its rules are to hold, set {wanted} and add this line behind its functions: {ours}"
        )
        return False
    text = with_line(own, fragment)
    if (wrong := mistake(text)) != "":
        why = "no Lua was found to try it with" if wrong is None else f"Lua says: {wrong}"
        plan.by_hand.append(
            f"{path} is left as it is ({why}). Add this line behind its functions: {ours}"
        )
        return MARK in own
    plan.changes.append(Change(path, before, bytes_of(text)))
    return True


def _name_in(site: SiteFiles, setting: str, wanted: str, plan: FileChanges) -> None:
    """A list of plugins of slurm.conf with lua in it."""
    found = site.settings.get(setting.lower())
    if found is None:
        plan.added[setting] = wanted.partition("=")[2]
    elif found.path == site.path and slurm_conf.can_be_replaced(site.text, found.line):
        plan.replaced[found.line] = wanted
    else:
        plan.by_hand.append(f"in {found.path}, line {found.line + 1}: {wanted}")


def _lacks(site: SiteFiles, library: str, folder: Path | None) -> str:
    """The folder of Slurm's plugins where it lacks one; empty where it is there or unknown."""
    named = str(folder) if folder else site.value("PluginDir")
    folders = [Path(one) for one in named.split(":") if one]
    if not folders:
        folders = [found for one in _PLUGIN_FOLDERS for found in Path("/").glob(one[1:])]
    there = [one for one in folders if any(one.glob("select_*.so"))]
    if not there or any((one / library).exists() for one in there):
        return ""
    return str(there[0])


def line(fragment: Path) -> str:
    """The line that loads a fragment; neither a missing nor a broken one can stop the script."""
    return (
        f'do local ok, why = pcall(dofile, "{fragment}") '
        'if not ok then pcall(slurm.log_error, "slurm-hadar: %s", tostring(why)) end end '
        f"{MARK}"
    )


def empty(kind: str) -> str:
    """A script for a site that has none; ``kind`` is job_submit or cli_filter."""
    return f"{_NEW}\n{_EMPTY[kind]}"


def with_line(text: str, fragment: Path) -> str:
    """``text`` with our line at the end of the script.

    In Lua nothing may follow the ``return`` that many scripts end with, so it goes before that.
    """
    lines = without_line(text).split("\n")
    if lines[-1] == "":
        lines.pop()
    at = len(lines)
    for number in range(len(lines) - 1, -1, -1):
        code = lines[number].split("--", 1)[0].rstrip()
        if code:
            at = number if re.match(r"return\b", code) else number + 1
            break
    lines.insert(at, line(fragment))
    return "\n".join([*lines, ""])


def without_line(text: str) -> str:
    """``text`` without our line."""
    return "\n".join(one for one in text.split("\n") if not one.endswith(MARK))


def is_ours(text: str, kind: str) -> bool:
    """Whether a script is :func:`empty`, with or without our line: it has no rules of the site."""
    return without_line(text) == empty(kind)


def mistake(text: str) -> str | None:
    """What Lua finds wrong with a script, ``""`` for nothing; None where no Lua can be asked.

    The script is read, not run.
    """
    for name in _LIBRARIES:
        found = ctypes.util.find_library(name)
        if not found:
            continue
        try:
            return _read_by(ctypes.CDLL(found), text)
        except (OSError, AttributeError):
            continue
    return None


def _read_by(library: ctypes.CDLL, text: str) -> str:
    new, close = library.luaL_newstate, library.lua_close
    load, message = library.luaL_loadstring, library.lua_tolstring
    new.restype, close.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    load.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    message.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    message.restype = ctypes.c_char_p
    state = new()
    if not state:
        raise OSError("no memory for Lua")
    try:
        if not load(state, text.encode(errors="surrogateescape")):
            return ""
        return (message(state, -1, None) or b"an unknown mistake").decode(errors="replace")
    finally:
        close(state)
