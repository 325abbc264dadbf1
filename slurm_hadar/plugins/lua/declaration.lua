-- The keys of a declaration: read from a script's #HADAR lines and from options, and written into
-- a Comment. Whatever is accepted here the controller can read; it may accept a little more.

local declaration = {}

-- Bytes of a script that are looked into for #HADAR lines, and words that are read at all: nobody
-- may make a submit expensive.
local SCRIPT_LIMIT, WORDS_LIMIT = 65536, 200

local function set(...)
  local found = {}
  for _, name in ipairs({...}) do found[name] = true end
  return found
end

local SIGNALS = {USR1 = 10, USR2 = 12, HUP = 1, INT = 2, TERM = 15, CONT = 18, URG = 23, WINCH = 28}
local NUMBERS = {}
for name, number in pairs(SIGNALS) do NUMBERS[tostring(number)] = name end
local YES, NO = set("yes", "true", "1", "on"), set("no", "false", "0", "off")

local function number(text, most)
  local value = text:match("^[%d.]+$") and tonumber(text)
    or text:match("^[%d.]+[eE]%+?%d+$") and tonumber(text)
  return value and value <= most and value or nil
end

local function whole(text)
  local value = number(text, 1e18)
  return value and value > 0 and value == math.floor(value) and value or nil
end

local function tasks(text)
  local value = whole(text)
  return value and value <= 1e6 and value or nil
end

local function seconds(text) return number(text, 1e6) end

function declaration.megabytes(text)
  local digits, unit = text:upper():match("^(%d+)([MGT]?)B?$")
  if not digits or #digits > 9 or tonumber(digits) == 0 then return nil end
  return tonumber(digits) * ({[""] = 1, M = 1, G = 1024, T = 1048576})[unit]
end

local function span(read)
  return function(text)
    local low, dash, high = text:gsub(":", "-"):match("^([^-]+)(-?)(.*)$")
    local least = low and read(low)
    local most = dash == "-" and read(high) or dash == "" and least
    return least and most and least <= most or nil
  end
end

-- GPU counts: a number, a range, or a list of at most 16 different ones.
local function gpus(text)
  if not text:find(",", 1, true) then return span(whole)(text) end
  local found, count = {}, 0
  for part in (text .. ","):gmatch("([^,]*),") do
    local value = whole(part)
    if not value then return nil end
    if not found[value] then count = count + 1 end
    found[value] = true
  end
  return count <= 16 or nil
end

local function yes(text) return YES[text:lower()] or NO[text:lower()] end

function declaration.word(text) return #text <= 100 and text:match("^[%w_.:/@+-]+$") end

local function words(text)
  for part in (text .. ","):gmatch("([^,]*),") do
    if not declaration.word(part) then return nil end
  end
  return true
end

local function cost(text) return text:lower() == "any" or nil end

-- A signal as it is written down, such as B:USR1@60; nil where it is none.
local function signal(text)
  local prefix, rest = text:upper():match("^([BF]:)(.*)$")
  local name, grace = (rest or text:upper()):gsub("^SIG", ""):match("^(%w+)(.*)$")
  name = name and (NUMBERS[name] or name)
  local digits = grace and grace:match("^@(%d+)$")
  local seconds = digits and #digits <= 5 and tonumber(digits) or 0
  if not SIGNALS[name or ""] or grace ~= "" and (seconds < 1 or seconds > 900) then return nil end
  return (prefix or "") .. name .. (grace ~= "" and ("@%d"):format(seconds) or "")
end

-- The signal of a value of sbatch --signal; nil where it is none that a job may save on.
function declaration.of_sbatch(text)
  local flags, rest = text:upper():match("^(.*):([^:]*)$")
  local name, seconds = (rest or text:upper()):match("^([^@]*)@(%d%d%d%d?%d?)$")
  if seconds and tonumber(seconds) <= 65535 then
    rest = ("%s@%d"):format(name, math.min(tonumber(seconds), 900))
    if not flags then return signal(rest) end
  end
  if not flags then return signal(text) end
  return signal((flags:find("B", 1, true) and "B:" or "") .. rest)
end

-- How a job saves, as it is written down; nil where it is not understood.
local function checkpoint(text)
  local path = text:match("^[wW][aA][tT][cC][hH]:(.*)$")
  if path then
    local rest = path:gsub("%%[jAa]", "")
    local good = path ~= "" and #path <= 300 and not rest:find("[^%w_.:/@+,=*?-]")
    good = good and not (path:match("^(.*)/[^/]*$") or ""):find("[*?]")
    return good and "watch:" .. path or nil
  end
  local word = text:lower()
  if word == "signal" or word == "restart" then return word end
  return YES[word] and "yes" or NO[word] and "no" or nil
end

local function exit_code(text)
  local value = text:match("^%d%d?%d?$") and tonumber(text)
  return value and value >= 1 and value <= 125 and value or nil
end

local function requeues(text)
  local value = text:match("^%d%d?%d?%d?$") and tonumber(text)
  return value and value <= 1000 and value or nil
end

-- A line of the job's output: text, * for anything, and the number that counts, once; or where
-- TensorBoard or wandb writes, and what its step counts.
local function progress(text)
  local before, inside, after = text:match("^([^{}]*){([^{}]*)}([^{}]*)$")
  if not before or #text > 200 then return nil end
  local path = before:match("^tensorboard:(.*)$") or before:match("^wandb:(.*)$")
  if path then
    if path == "" or after ~= "" or path:gsub("%%[jAa]", ""):find("[^%w_.:/@+,=-]") then return nil end
  elseif (before .. after):find("[^%w_.:/@+,=*-]") then
    return nil
  end
  local unit = inside:match("^step%*(%d+)$") or inside:match("^epoch%*(%d+)$")
  return (inside == "samples" or unit and #unit <= 12 and unit:sub(1, 1) ~= "0") and text or nil
end

-- The keys of a declaration in the order in which they are written, each with its reader; those
-- without one no user declares. A key that is not here, such as lease of old jobs, is read from a
-- Comment and never written.
local KEYS = {
  {"model", declaration.word}, {"types", words}, {"gpus", gpus}, {"gpu_mem", declaration.megabytes},
  {"batch", span(whole)}, {"samples", whole}, {"epochs", whole}, {"dataset_size", whole},
  {"checkpoint", checkpoint}, {"signal", signal}, {"lose", seconds}, {"checkpoint_exit_code", exit_code},
  {"max_requeues", requeues},
  {"progress", progress}, {"restart_cost", seconds}, {"wait", seconds}, {"cost", cost}, {"fork", span(whole)},
  {"tasks", tasks}, {"backfill", yes}, {"nodes", span(whole)}, {"cpus", span(whole)}, {"mem", span(declaration.megabytes)},
  {"off", yes}, {"pin", yes}, {"constraint", nil}, {"partitions", nil}, {"listed", nil},
}
local READ = {}
declaration.keys = {}
for _, key in ipairs(KEYS) do
  if key[2] then
    READ[key[1]] = key[2]
    declaration.keys[#declaration.keys + 1] = key[1]
  end
end

local function quote(text)
  return (text:gsub("[^%w_.,:/@+*|&()!-]", function(c) return ("%%%02x"):format(c:byte()) end))
end

local function unquote(text)
  return (text:gsub("%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end))
end

-- The declaration in a Comment, nil where there is none.
function declaration.decode(comment)
  local inside = (comment or ""):match("%[hadar1([ ;][^%[%]]*)%]")
  if not inside and (comment or ""):find("[hadar1]", 1, true) then inside = "" end
  if not inside then return nil end
  local found = {}
  for key, value in inside:gmatch("[ ;]([^ ;=]+)=([^ ;]*)") do found[key] = unquote(value) end
  return found
end

function declaration.encode(found)
  local parts = {"[hadar1"}
  for _, key in ipairs(KEYS) do
    if found[key[1]] then parts[#parts + 1] = key[1] .. "=" .. quote(found[key[1]]) end
  end
  return table.concat(parts, " ") .. "]"
end

-- The words of a script's #HADAR lines as {key, value, where}. Like sbatch with its own lines,
-- reading stops at the first line that is neither empty nor a comment. The second answer tells
-- whether it is a heterogeneous job.
function declaration.script_words(script)
  local found, het, count = {}, false, 0
  for line in (script:sub(1, SCRIPT_LIMIT) .. "\n"):gmatch("([^\n]*)\n") do
    count = count + 1
    if #found > WORDS_LIMIT or line:match("%S") and not line:match("^%s*#") then break end
    het = het or line:match("^#SBATCH%s+hetjob") or line:match("^#SBATCH%s+packjob")
    local text = line:match("^#HADAR(%s.*)")
    if text then
      for one in (text:gsub("%s#.*", "")):gmatch("%S+") do
        local key, value = one:match("^([^=]*)=(.*)$")
        found[#found + 1] = {key or one, value or "", "line " .. count .. " of the script"}
      end
    end
  end
  return found, het and true or false
end

-- The declaration that words {key, value, where} make; nil and a sentence where one is wrong.
function declaration.read(list)
  local found = {}
  if #list > WORDS_LIMIT then return nil, "more than " .. WORDS_LIMIT .. " arguments are declared" end
  for _, entry in ipairs(list) do
    local key, value, where = entry[1]:gsub("%-", "_"), entry[2], entry[3]
    if key == "off" and value == "" then value = "yes" end
    if not READ[key] then return nil, where .. ": there is no key " .. key:sub(1, 40) end
    local ok = value ~= "" and READ[key](value)
    if not ok then return nil, where .. ": " .. key .. "=" .. value:sub(1, 80) .. " is not understood" end
    if YES[value:lower()] and (READ[key] == yes) then value = "yes" end
    if NO[value:lower()] and (READ[key] == yes) then value = nil end
    if key == "signal" or key == "checkpoint" then value = ok ~= "no" and ok or nil end
    found[key] = value
  end
  local types = found.types and "," .. found.types .. ","
  if types and types:find(",any,", 1, true) and types ~= ",any," then
    return nil, "types is either any or a list of types, not both"
  end
  return found
end

return declaration
