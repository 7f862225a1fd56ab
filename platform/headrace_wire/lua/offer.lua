-- offer: let anyone have what was left to preferred workers, and still waits.
-- KEYS  1 stream record prefix · 2 queue prefix
-- ARGV  stream ids
-- Returns how many these are.
define('offer', function(keys, args)
  local count = 0
  for _, id in ipairs(args) do
    local f = redis.call('HMGET', keys[1] .. id, 'state', 'preferred', 'deployment')
    if f[1] == 'queued' and f[2] then
      ring(fair_keys(keys[2] .. f[3]))
      count = count + 1
    end
  end
  return count
end)
