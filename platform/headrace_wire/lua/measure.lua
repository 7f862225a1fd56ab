-- measure: file what a gateway measured in slots of ten seconds. Repeated, it files the same once.
-- KEYS  1 prefix of slots by series · 2 prefix of slots of whole deployments · 3 slots · 4 minutes to roll up
-- ARGV  1 how long slots are kept (s) · then for each slot: its beginning (Unix s), deployment, name of this part, total
--       (packed), number of series, and as many pairs: field, packed
-- Returns how many fields were new.
define('measure', function(keys, args)
  local kept = tonumber(args[1])
  local new, newest, i = 0, 0, 2
  while i <= #args do
    local slot, name = tonumber(args[i]), args[i] .. ':' .. args[i + 1]
    local series, total = keys[1] .. name, keys[2] .. name
    local added = redis.call('HSET', total, args[i + 2], args[i + 3])
    local last = i + 4 + 2 * tonumber(args[i + 4])
    for field = i + 5, last, 2 do
      added = added + redis.call('HSET', series, args[field], args[field + 1])
    end
    redis.call('EXPIREAT', series, int(slot + kept))
    redis.call('EXPIREAT', total, int(slot + kept))
    redis.call('ZADD', keys[3], int(slot), name)
    if added > 0 then redis.call('HINCRBY', keys[4], int(slot - slot % 60), 1) end
    new, newest, i = new + added, math.max(newest, slot), last + 1
  end
  redis.call('ZREMRANGEBYSCORE', keys[3], '-inf', int(newest - kept))
  redis.call('EXPIRE', keys[3], int(kept))
  redis.call('EXPIRE', keys[4], int(kept))
  return new
end)
