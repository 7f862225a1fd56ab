-- Entries of the response cache. `k`: {entry prefix, when used last (ZSET), when they end (ZSET), sizes (HASH)} of a tenant.

-- What Redis keeps of an entry beside its value, about.
local KEPT_OVERHEAD = 400

local function kept_drop(k, name)
  local size = tonumber(redis.call('HGET', k[4], name)) or 0
  redis.call('DEL', k[1] .. name)
  redis.call('ZREM', k[2], name)
  redis.call('ZREM', k[3], name)
  redis.call('HDEL', k[4], name)
  if size > 0 then redis.call('HINCRBY', k[4], 'total', -size) end
  return size
end

-- Forget those that have ended, and return how many bytes there are.
local function kept_total(k, now)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', k[3], '-inf', int(now))) do kept_drop(k, name) end
  return tonumber(redis.call('HGET', k[4], 'total')) or 0
end
