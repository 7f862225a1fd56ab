-- measure: file what a gateway measured in slots of ten seconds. Repeated, it files the same once.
-- KEYS  1 prefix of slots by series · 2 prefix of slots of whole deployments · 3 slots · 4 minutes to roll up
-- ARGV  1 how long slots are kept (s) · 2 name of this part · then for each slot: its beginning (Unix s), deployment,
--       total (packed), number of series, and as many pairs: field, packed
-- Returns how many fields were new.
define('measure', function(keys, args)
  local kept, part = tonumber(args[1]), args[2]
  local new, newest, i = 0, 0, 3
  while i <= #args do
    local slot, name = tonumber(args[i]), args[i] .. ':' .. args[i + 1]
    local expires = slot + kept
    local series, added = keys[1] .. name, redis.call('HSET', keys[2] .. name, part, args[i + 2])
    local count = tonumber(args[i + 3])
    i = i + 4
    for _ = 1, count do
      added = added + redis.call('HSET', series, args[i], args[i + 1])
      i = i + 2
    end
    redis.call('EXPIREAT', series, int(expires))
    redis.call('EXPIREAT', keys[2] .. name, int(expires))
    redis.call('ZADD', keys[3], int(slot), name)
    if added > 0 then redis.call('HINCRBY', keys[4], int(slot - slot % 60), 1) end
    new, newest = new + added, math.max(newest, slot)
  end
  redis.call('ZREMRANGEBYSCORE', keys[3], '-inf', int(newest - kept))
  redis.call('EXPIRE', keys[3], int(kept))
  redis.call('EXPIRE', keys[4], int(kept))
  return new
end)
