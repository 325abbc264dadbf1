-- slurm-hadar's part of job_submit.lua. Loading it puts our help around the site's own
-- slurm_job_submit: the site decides first, and a job that it rejects never comes here.
-- Nothing in here rejects a job: whatever goes wrong leaves the job as its owner submitted it.
-- Files are read while this is loaded only, never at a submit.

local folder = debug.getinfo(1, "S").source:match("^@(.*)/")
local help = dofile(folder .. "/help.lua")
local site = help.checked(dofile(folder .. "/site.lua"))

local OPTION = "^_SLURM_SPANK_OPTION_hadar_hadar_([%w_]+)=(.*)$"
local FIELDS = {"tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task"}
local OVERSUBSCRIBE = 1

local function list(text)
  local found = {}
  for name in (text or ""):gmatch("[^,]+") do found[#found + 1] = name end
  return found
end

local function partitions(job, all)
  local named = list(job.partition)
  if #named > 0 or not (next(site.opt_in) or next(site.groups)) then return named, named end
  for name, partition in pairs(all or {}) do
    if partition.flag_default == 1 then return named, {name} end
  end
  return named, named
end

-- A number that its owner gave; Slurm's own words for none are nil.
local function given(number)
  return number ~= slurm.NO_VAL and number ~= 0 and number or nil
end

local function keeps_partition(job)
  local shared = job.shared or slurm.NO_VAL16
  return (job.req_nodes or "") ~= "" or (job.reservation or "") ~= ""
    or shared ~= slurm.NO_VAL16 and shared ~= OVERSUBSCRIBE
end

local function declared(job, batch)
  local words, het = {}, false
  if batch then words, het = help.script_words(job.script) end
  if type(job.spank_job_env) == "table" then
    for _, entry in pairs(job.spank_job_env) do
      local key, value = tostring(entry):match(OPTION)
      if value == "(null)" then value = "" end
      if key then words[#words + 1] = {key, value, "--hadar-" .. key:gsub("_", "-")} end
    end
  end
  return words, het
end

local function changes(job, all)
  local batch = type(job.script) == "string"
  local words, het = declared(job, batch)
  if het or (job.het_job_offset and job.het_job_offset ~= slurm.NO_VAL) then return nil, "" end
  local gpus = {}
  for _, field in ipairs(FIELDS) do
    if job[field] then gpus[#gpus + 1] = {field, job[field]} end
  end
  local named, effective = partitions(job, all)
  local result, why = help.changes(site, {
    comment = job.comment, constraint = job.features, partitions = named, within = effective,
    gpus = gpus, declared = words, batch = batch, most_nodes = given(job.max_nodes),
    tasks = given(job.num_tasks), keeps_partition = keeps_partition(job),
    switches = given(job.req_switch) ~= nil,
  })
  return result, why, batch, #words > 0
end

-- Only where the site has limits is Slurm asked for the names.
local function limits(job)
  if not site.rollout then return false, nil end
  local account = job.account or job.default_account
  return help.outside(site, job.user_name, account ~= "" and account or nil)
end

local function help_out(job, all)
  local result, why, batch, declares = changes(job, all)
  if not result then
    if declares and why ~= "" then
      slurm.log_user("%s", help.plain("slurm-hadar: the job is not managed", {why}))
    end
    return
  end
  local set = {}
  for _, field in ipairs(result.gpus or {}) do set[#set + 1] = field end
  if result.constraint then set[#set + 1] = {"features", result.constraint} end
  if result.partitions then set[#set + 1] = {"partition", result.partitions} end
  if result.movable and job.requeue == slurm.NO_VAL16 then set[#set + 1] = {"requeue", 1} end
  if result.comment then set[#set + 1] = {"comment", result.comment} end
  help.assign(job, set)
  if batch and result.signal then
    pcall(function()
      job.environment["HADAR_EXCHANGE"] = site.exchange_dir
      job.environment["HADAR_CONTROLLER_UID"] = tostring(site.controller_uid)
      job.environment["HADAR_SIGNAL"] = result.signal
      if result.watch then job.environment["HADAR_CHECKPOINT"] = result.watch end
      if result.progress then job.environment["HADAR_PROGRESS"] = result.progress end
    end)
  end
  if declares and #set > 0 and not site.quiet then
    slurm.log_user("%s", help.told(result, limits(job)))
  end
end

local theirs = slurm_job_submit
if type(theirs) == "function" then
  slurm_job_submit = function(job, all, uid, ...)
    local code, more = theirs(job, all, uid, ...)
    if code == nil or code == slurm.SUCCESS then
      -- Nothing of ours is trusted here, not even that help is a table.
      local ok, well, why = pcall(function() return help.guarded(help_out, job, all) end)
      if not ok or not well then
        pcall(function()
          slurm.log_error("%s", "slurm-hadar: a job is left as it was submitted: " .. tostring(ok and why or well))
        end)
      end
    end
    return code, more
  end
end
