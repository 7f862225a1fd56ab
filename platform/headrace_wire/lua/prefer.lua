-- prefer: which worker of a deployment a prompt should go to: the one that holds most of it and is not overloaded, else the one
-- that has least to do.
-- KEYS  1 queue
-- ARGV  1 the prompt's hashes, packed
-- Returns {worker incarnation, how many blocks it holds}, or {} where no worker is alive.
define('prefer', function(keys, args)
  local k = fair_keys(keys[1])
  local workers = crew(k, now_ms())
  local best, most = best_holder(k, workers, args[1], '')
  if best then return { best.who, most } end
  best = least_busy(workers) or workers[1]
  return best and { best.who, blocks_held(k, best.who, args[1]) } or {}
end)
