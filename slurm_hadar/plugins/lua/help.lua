-- What a submit needs to be managed: plain values in, plain values out.
-- No Slurm, no file and no clock at a submit, so that it is cheap under slurmctld's locks.

local folder = debug.getinfo(1, "S").source:match("^@(.*)/")
local declaration = dofile(folder .. "/declaration.lua")

-- Bytes that Slurm takes in a Comment.
local COMMENT_LIMIT = 1024

local help = {script_words = declaration.script_words}

-- Requests that count the GPUs of the whole job, as cli_filter and job_submit name them.
local BY_JOB = {gpus = true, tres_per_job = true}
local ONE_GPU = {gpu = true, ["gpu:1"] = true, ["gpu=1"] = true}

local SETTINGS = {
  untype = "boolean", quiet = "boolean", default_types = "string",
  exchange_dir = "string", controller_uid = "number",
  opt_in = "table", order = "table", types = "table",
}

-- The site's settings; raises an error where one is of the wrong kind, while nothing was done yet.
-- Those that a site.lua of the release before had beside these are ignored.
function help.checked(site)
  for name, kind in pairs(SETTINGS) do
    assert(type(site[name]) == kind, "site.lua: " .. name .. " is no " .. kind)
  end
  for name, gpu in pairs(site.types) do
    local good = type(gpu) == "table" and type(gpu.feature) == "string" and gpu.feature ~= ""
    assert(good and type(gpu.memory_mb) == "number", "site.lua: types." .. tostring(name))
  end
  -- A site.lua of the release before has none.
  if type(site.default_partition) ~= "string" then site.default_partition = "" end
  if site.groups == nil then site.groups = {} end
  assert(type(site.groups) == "table", "site.lua: groups is no table")
  for name, members in pairs(site.groups) do
    assert(type(members) == "table", "site.lua: groups." .. tostring(name))
    for _, member in ipairs(members) do
      local good = type(member) == "table" and type(member[1]) == "string" and type(member[2]) == "string"
      assert(good, "site.lua: groups." .. tostring(name))
    end
  end
  if site.rollout ~= nil then
    local limits = site.rollout
    local good = type(limits) == "table" and type(limits.accounts) == "table"
      and type(limits.users) == "table" and type(limits.percent) == "number"
    assert(good, "site.lua: rollout")
  end
  for _, name in ipairs(site.order) do assert(site.types[name], "site.lua: order") end
  return site
end

-- One request for GRES, such as gres:gpu:v100:2, without its GPU type; its types, and whether it
-- asks for GPUs at all. nil where it is written in a way that only Slurm should interpret.
function help.untyped(text)
  local parts, types, asks = {}, {}, false
  for part in (text .. ","):gmatch("([^,]*),") do
    local before, rest = part:match("^(gres[:/]gpu)(.*)$")
    if not before then before, rest = part:match("^(gpu)(.*)$") end
    if before and (rest == "" or rest:match("^[:=/(]")) then
      asks = true
      local kind, count = rest:match("^:([%w_.-]+)([:=]%d+)$")
      if not kind then kind = rest:match("^:(%a[%w_.-]*)$") end
      if kind then
        types[#types + 1] = kind
        part = before .. (count or "")
      elseif not (rest == "" or rest:match("^[:=]%d+$")) then
        return nil
      end
    end
    parts[#parts + 1] = part
  end
  return table.concat(parts, ","), types, asks
end

-- The GPUs asked for in all fields: whether any, the types named, the fields without their type.
local function request(fields)
  local asks, types, plain, seen = false, {}, {}, {}
  for _, field in ipairs(fields) do
    local text, kinds, has = help.untyped(field[2])
    if not text then return true, nil, nil end
    asks = asks or has
    if #kinds > 0 then plain[#plain + 1] = {field[1], text} end
    for _, kind in ipairs(kinds) do
      if not seen[kind] then types[#types + 1] = kind end
      seen[kind] = true
    end
  end
  return asks, types, plain
end

-- Those of these types with enough memory, or of unknown memory where none is known to have enough.
local function large_enough(site, kinds, memory)
  local large, unknown = {}, {}
  for _, kind in ipairs(kinds) do
    local has = site.types[kind].memory_mb
    local list = has >= memory and large or has == 0 and unknown
    if list then list[#list + 1] = kind end
  end
  return #large > 0 and large or unknown
end

-- The declared types with enough memory, in the site's order; nil where nothing is to be enforced.
local function enforced(site, found, notes)
  local types, memory = found.types or "any", found.gpu_mem and declaration.megabytes(found.gpu_mem) or 0
  local any = types == "any"
  if any and memory == 0 then return nil end
  local wanted, kinds = {}, {}
  for kind in (any and "" or types .. ","):gmatch("([^,]*),") do
    wanted[kind] = true
    if not site.types[kind] then notes[#notes + 1] = "this site has no " .. kind end
  end
  for _, kind in ipairs(site.order) do
    if any or wanted[kind] then kinds[#kinds + 1] = kind end
  end
  local chosen = large_enough(site, kinds, memory)
  if #chosen == 0 then
    notes[#notes + 1] = "no GPU type of this site is as declared, so types and gpu_mem are not enforced"
    return nil
  end
  if any and #chosen == #site.order then return nil end
  return chosen
end

-- The features of these types, none twice.
local function features(site, kinds)
  local seen, names = {}, {}
  for _, kind in ipairs(kinds) do
    local feature = site.types[kind].feature
    if not seen[feature] then names[#names + 1] = feature end
    seen[feature] = true
  end
  return table.concat(names, "|")
end

-- Whether a job is surely on one node, by the rule of hbatch: Slurm spreads tasks, and GPUs that are
-- counted by job, over as many nodes as it likes. A site.lua of an earlier release has no copies.
local function on_one_node(site, ask, found)
  local copies = site.copies ~= false and found.fork and found.fork ~= "1" and found.fork ~= "1-1"
  if found.nodes or copies then return false end
  if ask.most_nodes then return ask.most_nodes == 1 end
  for _, field in ipairs(ask.gpus) do
    local text = BY_JOB[field[1]] and help.untyped(field[2])
    if text and not ONE_GPU[text:gsub("^gres[:/]", "")] then return false end
  end
  return (ask.tasks or 1) == 1
end

-- The one partition of a job, and the list of those that it stands for, in the site's order, where
-- each of these types has its own; nil where it stands for no others, or has to stay as it is.
local function list_of(site, ask, found, fresh, kinds)
  local within = ask.within or ask.partitions
  local name, own = within[1], found.constraint or ask.constraint or ""
  local group = #within == 1 and declaration.word(name) and site.groups[name]
  -- The list is taken back by the name that the job is declared with.
  local declared = found.partitions or fresh and name
  if not group or declared ~= name or own ~= "" then return nil end
  if ask.keeps_partition or not on_one_node(site, ask, found) then return nil end
  local wanted, has, names = {}, {}, {}
  for _, kind in ipairs(kinds) do wanted[kind] = true end
  for _, member in ipairs(group) do
    if wanted[member[2]] then names[#names + 1] = member[1] end
    has[member[2]] = true
  end
  for _, kind in ipairs(kinds) do
    if not has[kind] then return nil end
  end
  return name, table.concat(names, ",")
end

local function opted_in(site, partitions)
  for _, name in ipairs(partitions) do
    if site.opt_in[name] then return true end
  end
  return false
end

local function includes(declared, types)
  for _, kind in ipairs(types) do
    local listed = declared and ("," .. declared .. ","):find("," .. kind .. ",", 1, true)
    if declared ~= "any" and not listed then return false end
  end
  return true
end

local function joined(partitions)
  for _, name in ipairs(partitions) do
    if not declaration.word(name) then return nil end
  end
  return #partitions > 0 and table.concat(partitions, ",") or nil
end

-- Has Slurm choose among these types: by a list of partitions, else by features.
local function choose(site, ask, found, fresh, kinds, result)
  local name, list = list_of(site, ask, found, fresh, kinds)
  if name then
    found.partitions, found.listed, result.partitions = name, list, list
  else
    result.constraint = features(site, kinds)
  end
end

-- Takes the type out of a request and lays its feature over the user's constraint, where the
-- controller can do the same with it later. Nothing where that would change what the user asked.
local function untype(site, ask, found, fresh, types, plain, result)
  if not site.untype or #types ~= 1 or not site.types[types[1]] then return end
  local own = found.constraint or ""
  if own:match("[^%w_.:@+/&-]") then
    result.notes[#result.notes + 1] = "its GPU type stays in the request, because of its --constraint"
    return
  end
  local kinds = enforced(site, found, {}) or found.types ~= "any" and {types[1]}
  if kinds then choose(site, ask, found, fresh, kinds, result) end
  local chosen = result.constraint
  if chosen and own ~= "" then
    result.constraint = (chosen:find("|", 1, true) and "(" .. chosen .. ")" or chosen) .. "&" .. own
  end
  result.gpus = plain
  local by = result.partitions and "partition" or "feature"
  result.notes[#result.notes + 1] = "the GPU type is asked for by its " .. by
end

-- What is to be changed in a submit, or nil and why not ('' where the job is none of ours).
--
-- ask: comment, constraint (strings or nil), partitions (list, as named), within (list, as they
-- hold), gpus (list of {field, text}),
-- declared (list of {key, value, where}), batch, most_nodes, tasks (numbers; nil: not said),
-- keeps_partition (whether it names nodes, a reservation, or is exclusive), switches (whether it has
-- --switches), signal (sbatch's own, nil where it is not known).
-- Answer: comment, constraint, partitions (text), gpus (list of {field, text}), movable, signal,
-- watch (its checkpoint key, where it is to be watched), progress (where its output shows it), notes.
-- Of a job that hbatch or cli_filter declared: its signal, watch and progress, and gpus and constraint or partitions where they change.
-- Nothing that decides when a job may start is ever changed: it is eligible as its owner asked.
function help.changes(site, ask)
  local asks, types, plain = request(ask.gpus)
  local result = {notes = {}}
  local found, why = declaration.decode(ask.comment), nil
  local fresh = found == nil
  if fresh then
    found, why = declaration.read(ask.declared)
    if not found then return nil, why end
    local declares = #ask.declared > 0
    -- An interactive job is left alone in a partition that opts its jobs in.
    local opts_in = asks and ask.batch ~= false and opted_in(site, ask.within or ask.partitions)
    if not (declares or opts_in) then return nil, "" end
    if not declares and site.default_types ~= "" then found.types = site.default_types end
    if found.off ~= "yes" then
      found.constraint = ask.constraint ~= "" and ask.constraint or nil
      found.partitions = joined(ask.partitions)
      -- A typed request stays what it says, unless its owner declared more and the type can go.
      local widens = declares and site.untype and includes(found.types, types or {})
      if types and #types > 0 and not widens then found.types = table.concat(types, ",") end
    end
  end
  if found.off == "yes" then
    if not fresh then return nil, "" end
    result.comment = help.join(ask.comment, declaration.encode({off = "yes"}))
    return result
  end
  if types and #types > 0 then
    untype(site, ask, found, fresh, types, plain, result)
    if fresh and not result.gpus then found.types = table.concat(types, ",") end
  elseif fresh and types and asks and not found.constraint then
    local kinds = enforced(site, found, result.notes)
    if kinds then choose(site, ask, found, fresh, kinds, result) end
  end
  if fresh and found.checkpoint == "signal" and not found.signal and ask.signal and declaration.of_sbatch then
    found.signal = declaration.of_sbatch(ask.signal)
  end
  local one_node = ask.most_nodes == 1 and not found.nodes
  if fresh and ask.switches and found.checkpoint and found.pin ~= "yes" and not one_node then
    -- On more switches Slurm would keep it waiting, and 22.05 does not show a controller that option.
    found.pin = "yes"
    result.notes[#result.notes + 1] = "it is not moved, as its --switches could keep it waiting after a move"
  end
  -- Its name alone.
  result.signal = (found.signal or "USR2"):gsub("^.*:", ""):gsub("@.*$", "")
  if (found.checkpoint or ""):find("^watch:") then result.watch = found.checkpoint end
  if found.checkpoint ~= "yes" then result.progress = found.progress end
  if not fresh then return result end
  if not asks then
    result.no_gpus = true
    result.notes[#result.notes + 1] = "it asks for no GPU: add --gres=gpu"
  end
  result.movable = found.checkpoint and ask.batch
  result.comment = help.join(ask.comment, declaration.encode(found))
  if #result.comment > COMMENT_LIMIT then
    found.listed = nil
    result.comment = help.join(ask.comment, declaration.encode(found))
  end
  if #result.comment > COMMENT_LIMIT then
    return nil, "its Comment would have " .. #result.comment .. " bytes, and Slurm takes " .. COMMENT_LIMIT
  end
  return result
end

function help.join(comment, segment)
  return comment and comment ~= "" and comment .. " " .. segment or segment
end

-- A sentence without digits: who looks for the job's number in all that a submit prints finds Slurm's.
function help.plain(text, notes)
  local before = ": "
  for _, note in ipairs(notes) do
    text = text .. before .. note:gsub("%d+", "#")
    before = "; "
  end
  return text
end

-- Whether the site leaves a job out that opted in, and a sentence. The account is nil where it is
-- not known, and so is the job's number, by which a share of all is drawn.
function help.outside(site, user, account)
  local limits = site.rollout
  if not limits then return false, nil end
  if limits.percent <= 0 then return true, "outside the site's rollout, which takes no job now" end
  local maybe = "only if the site's rollout takes it, which hadar explain says"
  local by_account, by_user = next(limits.accounts) ~= nil, next(limits.users) ~= nil
  if by_account or by_user then
    local named = account and limits.accounts[account] or user and limits.users[user]
    if not named and (account and account ~= "" or not by_account) then
      return true, "outside the site's rollout: neither its account nor its user is in it"
    end
    if not named then return false, maybe end
  end
  return false, limits.percent < 100 and maybe or nil
end

-- One sentence on what was done. Whether a controller acts stands in a file, and at a submit
-- slurmctld reads none.
function help.told(result, outside, why)
  if (result.comment or ""):find(" off=yes", 1, true) then return "slurm-hadar: the job is not managed: off=yes" end
  if result.no_gpus then return help.plain("slurm-hadar: the job is not managed", result.notes) end
  if outside then return help.plain("slurm-hadar: the job is not managed", {why}) end
  if why then result.notes[#result.notes + 1] = why end
  return help.plain("slurm-hadar: the job is managed while a controller acts", result.notes)
end

-- Calls a function that may fail in any way; one that runs too long is stopped. ok, its answer.
function help.guarded(work, ...)
  local hook = debug and debug.sethook
  if hook then
    hook(function() hook() error("it took too long", 0) end, "", 2000000)
  end
  local ok, one, two = pcall(work, ...)
  if hook then hook() end
  return ok, one, two
end

-- Sets fields {name, value} of what Slurm handed over, all or none. Raises what Slurm raised.
function help.assign(target, fields)
  local before = {}
  for _, field in ipairs(fields) do
    local value = target[field[1]]
    local ok, why = pcall(function() target[field[1]] = field[2] end)
    if not ok then
      for i = #before, 1, -1 do
        pcall(function() target[before[i][1]] = before[i][2] or "" end)
      end
      error(why, 0)
    end
    before[#before + 1] = {field[1], value}
  end
end

return help
