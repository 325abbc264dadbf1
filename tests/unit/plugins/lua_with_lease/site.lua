-- Written by 'hadar plugins install' from the site's configuration.
-- Its options: --untype --lease
return {
  untype = true,
  lease_s = 300,
  lease_in_slurmctld = true,
  quiet = false,
  default_types = "",
  exchange_dir = "/shared/x",
  controller_uid = 0,
  opt_in = {["gpu"] = true},
  order = {"v100", "p100"},
  types = {
    ["v100"] = {feature = "v100", memory_mb = 16384},
    ["p100"] = {feature = "pascal", memory_mb = 0},
  },
}
