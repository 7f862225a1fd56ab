-- Entries of the response cache. `k`, of a tenant: {entry prefix, when used last (ZSET), when they end (ZSET), sizes (HASH),
-- prefix of questions to compare with (HASH by partition: name -> packed question), partitions (HASH: name -> partition)}.

-- What Redis keeps of an entry beside its value, about.
local KEPT_OVERHEAD = 400
-- Likewise of a question.
local ALIKE_OVERHEAD = 400
-- Of a partition: a comparison reads them all.
local MOST_ALIKE = 256

-- Forget a question; its answer is still found by its name.
local function alike_drop(k, name)
  local partition = redis.call('HGET', k[6], name)
  if not partition then return 0 end
  local size = redis.call('HSTRLEN', k[5] .. partition, name) + ALIKE_OVERHEAD
  redis.call('HDEL', k[5] .. partition, name)
  redis.call('HDEL', k[6], name)
  return size
end

-- Note the question of an entry that is kept already; of a full partition the one whose answer was used longest ago goes.
local function alike_note(k, name, partition, packed)
  local key = k[5] .. partition
  if redis.call('HLEN', key) >= MOST_ALIKE then
    local oldest, oldest_at
    for _, other in ipairs(redis.call('HKEYS', key)) do
      local used = tonumber(redis.call('ZSCORE', k[2], other)) or 0
      if not oldest or used < oldest_at then oldest, oldest_at = other, used end
    end
    local freed = alike_drop(k, oldest)
    if redis.call('HEXISTS', k[4], oldest) == 1 then
      redis.call('HINCRBY', k[4], oldest, -freed)
      redis.call('HINCRBY', k[4], 'total', -freed)
    end
  end
  redis.call('HSET', key, name, packed)
  redis.call('HSET', k[6], name, partition)
  redis.call('PEXPIRE', key, 7200000)
end

local function kept_drop(k, name)
  local size = tonumber(redis.call('HGET', k[4], name)) or 0
  redis.call('DEL', k[1] .. name)
  alike_drop(k, name)
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
