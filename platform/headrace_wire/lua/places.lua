-- places: where waiting streams stand, for those who wait.
-- KEYS  1 stream record prefix · 2 queue prefix
-- ARGV  stream ids
-- Returns for each: {position (1: next; 0: it does not wait), 1 if the caller's own limit keeps it, how many before it were
--       served before, how many are of higher bands, {how long it should wait (ms), the ratios of it between which 8 of 10
--       waits are, samples, places of all workers (-1: unknown)}}.
define('places', function(keys, args)
  local found = {}
  for i, id in ipairs(args) do
    local deployment = redis.call('HGET', keys[1] .. id, 'deployment')
    local place, pace
    if deployment then place, pace = position_of(keys[1], fair_keys(keys[2] .. deployment), id) end
    if place then
      found[i] = { place[1], place[2], place[3], place[4], pace }
    else
      found[i] = { 0, 0, 0, 0, { '0', '0', '0', 0, -1 } }
    end
  end
  return found
end)
