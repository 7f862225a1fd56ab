-- places: where waiting streams stand, for those who wait.
-- KEYS  1 stream record prefix · 2 queue prefix
-- ARGV  stream ids
-- Returns for each: {position (1: next; 0: it does not wait), 1 if the caller's own limit keeps it, how many before it were
--       served before, how many are of higher bands, how many claims it waits for, their mean time apart (ms), mean of squares,
--       samples}.
define('places', function(keys, args)
  local found = {}
  for i, id in ipairs(args) do
    local deployment = redis.call('HGET', keys[1] .. id, 'deployment')
    local place, claims, pace
    if deployment then place, claims, pace = position_of(keys[1], fair_keys(keys[2] .. deployment), id) end
    if place then
      found[i] = { place[1], place[2], place[3], place[4], claims, tostring(pace[3]), tostring(pace[4]), int(pace[5]) }
    else
      found[i] = { 0, 0, 0, 0, 0, '0', '0', '0' }
    end
  end
  return found
end)
