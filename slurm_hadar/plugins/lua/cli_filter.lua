-- slurm-hadar's part of cli_filter.lua: the same help as in job_submit, in the user's own process.
-- Loading it puts our help around the site's own slurm_cli_pre_submit.
-- Whatever goes wrong here leaves the options as their owner typed them.

local folder = debug.getinfo(1, "S").source:match("^@(.*)/")
local help = dofile(folder .. "/help.lua")
local site = help.checked(dofile(folder .. "/site.lua"))

local GRES, GPUS = {"gres"}, {"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"}

local function list(text)
  local found = {}
  for name in (text or ""):gmatch("[^,]+") do found[#found + 1] = name end
  return found
end

local function given(options, name)
  local value = options[name]
  local nothing = value == nil or value == "" or value == "unset" or value == "Unknown"
    or value == "invalid-context"
  return not nothing
end

-- Lua can neither tell a file from a pipe nor open one without waiting, so a program reads for it: an
-- ordinary file only, and for 2 s at most. sbatch has read a pipe to its end already. The name goes
-- as the numbers of its bytes, so that nothing of it is the shell's.
local READ = [[n=$(printf '%%b.' '%s') && n=${n%%.} && [ -f "$n" ] && exec timeout 2 head -c 65536 -- "$n"]]

local function script_of(options)
  local argv = options.argv
  local name = type(argv) == "table" and (argv[1] or argv[0])
  if options.type ~= "sbatch" or given(options, "wrap") or type(name) ~= "string" then return "" end
  local bytes = name:gsub(".", function(c) return ("\\0%03o"):format(c:byte()) end)
  local reader = io.popen("exec </dev/null 2>&0; PATH=/usr/bin:/bin; " .. READ:format(bytes))
  if not reader then return "" end
  local text = reader:read(65536) or ""
  reader:close()
  return text
end

local function declared(options)
  local words, het = help.script_words(script_of(options))
  local spank = options.spank
  if type(spank) == "table" and type(spank.hadar) == "table" then
    for name, value in pairs(spank.hadar) do
      local key = name:match("^hadar%-(.+)$")
      -- An option without a value of its own is set or unset.
      if key == "off" then value = value == "set" and "yes" or nil end
      if key and value then words[#words + 1] = {key, tostring(value), "--" .. name} end
    end
  end
  return words, het
end

-- Requests as job_submit would see them: --gpus=v100:2 is gpu:v100:2.
local function requests(options)
  local found = {}
  for _, name in ipairs(GRES) do
    if given(options, name) then found[#found + 1] = {name, options[name]} end
  end
  for _, name in ipairs(GPUS) do
    if given(options, name) then
      local parts = {}
      for part in options[name]:gmatch("[^,]+") do parts[#parts + 1] = "gpu:" .. part end
      found[#found + 1] = {name, table.concat(parts, ",")}
    end
  end
  return found
end

local function as_typed(name, text)
  if name == "gres" then return text end
  return (text:gsub("gpu:", ""):gsub("^gpu$", "1"))
end

-- The partitions that hold: those named, or the default one, which Slurm does not tell here.
local function within(options)
  local named = list(options.partition)
  return #named > 0 and named or {site.default_partition}
end

-- The nodes asked for at most. Slurm says 1-0 where nobody named a number.
local function most_nodes(options)
  local least, most = (options.nodes or ""):match("^(%d+)-?(%d*)$")
  local number = tonumber(most) or tonumber(least)
  return number ~= 0 and number or nil
end

local function keeps_partition(options)
  for _, name in ipairs({"nodelist", "nodefile", "reservation"}) do
    if given(options, name) then return true end
  end
  return given(options, "exclusive") and options.exclusive ~= "oversubscribe"
end

-- What is said once Slurm has taken the job.
local remark

local function help_out(options, offset)
  -- A step inside of a job takes what the job has.
  if options.type == "srun" and os.getenv("SLURM_JOB_ID") then return end
  remark = nil
  local words, het = declared(options)
  if het or (tonumber(offset) or 0) ~= 0 or given(options, "test-only") then return end
  local result, why = help.changes(site, {
    comment = options.comment, constraint = options.constraint,
    partitions = list(options.partition), within = within(options), gpus = requests(options), declared = words,
    batch = options.type == "sbatch", most_nodes = most_nodes(options), tasks = tonumber(options.ntasks),
    keeps_partition = keeps_partition(options), switches = given(options, "switches"),
    signal = given(options, "signal") and options.signal or nil,
  })
  if not result then
    -- Slurmctld's plugin gets the same words, and a user reads it once.
    if site.job_submit then return end
    remark = #words > 0 and why ~= "" and help.plain("slurm-hadar: the job is not managed", {why}) or nil
    return
  end
  local set = {}
  for _, field in ipairs(result.gpus or {}) do
    set[#set + 1] = {field[1], as_typed(field[1], field[2])}
  end
  if result.constraint then set[#set + 1] = {"constraint", result.constraint} end
  if result.partitions then set[#set + 1] = {"partition", result.partitions} end
  if result.movable then
    if not given(options, "requeue") then set[#set + 1] = {"requeue", "yes"} end
    if not given(options, "open-mode") then set[#set + 1] = {"open-mode", "append"} end
  end
  if result.comment then set[#set + 1] = {"comment", result.comment} end
  help.assign(options, set)
  remark = #words > 0 and #set > 0
    and help.told(result, help.outside(site, os.getenv("USER"), given(options, "account") and options.account or nil))
    or nil
end

local theirs = slurm_cli_pre_submit
if type(theirs) == "function" then
  slurm_cli_pre_submit = function(options, offset, ...)
    local code, more = theirs(options, offset, ...)
    if code == nil or code == slurm.SUCCESS then
      -- Nothing of ours is trusted here, not even that help is a table.
      local ok, well, why = pcall(function() return help.guarded(help_out, options, offset) end)
      if not ok or not well then
        pcall(function()
          slurm.log_verbose("%s", "slurm-hadar: the options stay as typed: " .. tostring(ok and why or well))
        end)
      end
    end
    return code, more
  end
end

local theirs_after = slurm_cli_post_submit
slurm_cli_post_submit = function(...)
  local answer, code, more = remark, nil, nil
  remark = nil
  if type(theirs_after) == "function" then code, more = theirs_after(...) end
  if answer and not site.quiet then pcall(slurm.log_info, "%s", answer) end
  return code == nil and slurm.SUCCESS or code, more
end
