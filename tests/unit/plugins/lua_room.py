"""Runs Lua in this process, with the library that Slurm's own Lua plugins are linked to."""

import ctypes
import ctypes.util
import json
from pathlib import Path
from typing import Any

from missing import missing

from slurm_hadar import plugins

FOLDER = Path(plugins.__file__).parent / "lua"
_JSON = """
local function json(value)
  if type(value) == "table" then
    local parts = {}
    if #value > 0 or next(value) == nil then
      for _, one in ipairs(value) do parts[#parts + 1] = json(one) end
      return "[" .. table.concat(parts, ",") .. "]"
    end
    for key, one in pairs(value) do
      parts[#parts + 1] = json(tostring(key)) .. ":" .. json(one)
    end
    return "{" .. table.concat(parts, ",") .. "}"
  elseif type(value) == "string" then
    return '"' .. value:gsub('[^%w _.,:/=|&()%-]', function(c)
      return ("\\\\u%04x"):format(c:byte()) end) .. '"'
  elseif type(value) == "number" then return ("%.17g"):format(value)
  elseif type(value) == "boolean" then return tostring(value) end
  return "null"
end
"""


def library() -> ctypes.CDLL:
    """Lua, or skip saying what is missing."""
    for name in ("lua5.1", "lua5.4", "lua5.3", "lua5.2"):
        if found := ctypes.util.find_library(name):
            return ctypes.CDLL(found)
    missing("no liblua on this machine (Debian: apt-get install liblua5.1-0)")


def literal(value: object) -> str:
    """A value as Lua text."""
    if isinstance(value, dict):
        return "{" + ",".join(f"[{literal(k)}]={literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "{" + ",".join(map(literal, value)) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
    return "nil" if value is None else repr(value)


def run(text: str, tmp_path: Path) -> Any:
    """Run a chunk that ends with ``answer(VALUE)``. Fails the test where Lua raises."""
    lua, out = library(), tmp_path / "answer.json"
    out.unlink(missing_ok=True)
    head = f"{_JSON}\nlocal FOLDER = {literal(str(FOLDER))}\nlocal function answer(value)\n"
    head += f"local f = io.open({literal(str(out))}, 'w') f:write(json(value)) f:close() end\n"
    lua.luaL_newstate.restype = ctypes.c_void_p
    lua.lua_tolstring.restype = ctypes.c_char_p
    state = ctypes.c_void_p(lua.luaL_newstate())
    try:
        lua.luaL_openlibs(state)
        code = lua.luaL_loadstring(state, (head + text).encode())
        if not code and hasattr(lua, "lua_pcallk"):
            code = lua.lua_pcallk(state, 0, 0, 0, ctypes.c_ssize_t(0), None)
        elif not code:
            code = lua.lua_pcall(state, 0, 0, 0)
        assert not code, (lua.lua_tolstring(state, -1, None) or b"?").decode()
    finally:
        lua.lua_close(state)
    return json.loads(out.read_text())
