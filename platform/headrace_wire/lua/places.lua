-- places: where waiting streams stand, for those who wait.
-- KEYS  1 stream record prefix · 2 queue prefix
-- ARGV  stream ids
-- Returns for each: {position (1: next; 0: it does not wait), 1 if the caller's own limit keeps it, how many before it were
--       served before, how many are of higher bands, time between claims (ms): mean · mean of squares · samples}.
define('places', function(keys, args)
  local found = {}
  for i, id in ipairs(args) do
    local deployment = redis.call('HGET', keys[1] .. id, 'deployment')
    local position, own, ahead, above, pace = 0, 0, 0, 0, {}
    if deployment then
      local k = fair_keys(keys[2] .. deployment)
      local at, limited, served_before, higher = position_of(keys[1], k, id)
      if at then
        position, own, ahead, above = at, limited, served_before, higher
        pace = redis.call('HMGET', k.pace, 'mean', 'square', 'samples')
      end
    end
    found[i] = { position, own, ahead, above, pace[1] or '0', pace[2] or '0', pace[3] or '0' }
  end
  return found
end)
