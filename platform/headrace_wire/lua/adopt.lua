-- adopt: look after the streams that gateways read which have died, and that nobody else looks after.
-- KEYS  1 gateways left behind
-- ARGV  1 how long the caller has them for (ms) · 2.. those that the caller has already, and keeps
-- Returns those that are the caller's from now on.
define('adopt', function(keys, args)
  local now = now_ms()
  local has_until = int(now + tonumber(args[1]))
  for i = 2, #args do redis.call('ZADD', keys[1], 'XX', has_until, args[i]) end
  local free = redis.call('ZRANGEBYSCORE', keys[1], '-inf', int(now), 'LIMIT', 0, 16)
  for _, gateway in ipairs(free) do redis.call('ZADD', keys[1], 'XX', has_until, gateway) end
  return free
end)
