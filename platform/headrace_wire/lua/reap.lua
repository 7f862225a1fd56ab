-- reap: take the streams of incarnations whose lease has ended. The caller becomes their owner under a new epoch, so that a
-- woken owner is fenced, and must bring each of them to an end (or back into the queue).
-- Streams that were settled a moment before their owner died may not have been published: the caller does it again.
-- Streams whose reader has not come on for too long end in the same way, with a cancel reason, and so do those that nobody
-- has taken, or gone on with, in time. What a dead gateway read is for `adopt`.
-- KEYS  1 incarnations · 2 the caller's assignment table · 3 assignment prefix · 4 stream record prefix · 5 suspended streams
--       6 deadlines of waiting streams · 7 queue prefix · 8 gateways left behind
-- ARGV  1 caller's incarnation · 2 how many at most · 3 how long a stream may be suspended (ms) · 4 how gateways' names begin
-- Returns {dead, taken, settled}: dead: incarnations removed; taken: list of {stream id, epoch, tenant, deployment, attempts,
--       log ttl ms, cancel reason or ''}; settled: ids of streams whose end is to be published.
define('reap', function(keys, args)
  local now = now_ms()
  local me, limit = args[1], tonumber(args[2])
  local mine = redis.call('ZSCORE', keys[1], me)
  if not mine or tonumber(mine) <= now then return { {}, {}, {} } end
  local dead, taken, settled = {}, {}, {}

  local function collect_stream(id, record, previous_epoch)
    local f = redis.call('HMGET', record, 'tenant', 'deployment', 'attempts', 'log_ttl_ms', 'cancel')
    local epoch = take(record, keys[2], id, me, previous_epoch, now)
    taken[#taken + 1] = { id, epoch, f[1], f[2], f[3], f[4], f[5] or '' }
  end

  local overdue = redis.call('ZRANGEBYSCORE', keys[5], '-inf', int(now - tonumber(args[3])), 'LIMIT', 0, limit)
  for _, id in ipairs(overdue) do
    redis.call('ZREM', keys[5], id)
    local record = keys[4] .. id
    local f = redis.call('HMGET', record, 'state', 'epoch')
    if f[1] == 'suspended' then
      redis.call('HSET', record, 'state', 'running', 'cancel', 'suspended_too_long')
      collect_stream(id, record, f[2])
    end
  end

  for _, id in ipairs(redis.call('ZRANGEBYSCORE', keys[6], '-inf', int(now), 'LIMIT', 0, limit)) do
    redis.call('ZREM', keys[6], id)
    local record = keys[4] .. id
    local f = redis.call('HMGET', record, 'state', 'epoch', 'wait_until_ms', 'deployment', 'parked')
    if f[1] == 'queued' and tonumber(f[3]) <= now then
      withdraw(keys[4], fair_keys(keys[7] .. f[4]), id)
      redis.call('HSET', record, 'state', 'running')
      redis.call('HSETNX', record, 'cancel', f[5] and 'own_limit_timeout' or 'queue_timeout')
      collect_stream(id, record, f[2])
    end
  end

  for _, who in ipairs(redis.call('ZRANGEBYSCORE', keys[1], '-inf', int(now), 'LIMIT', 0, 16)) do
    local table_key = keys[3] .. who
    local assigned = redis.call('HGETALL', table_key)
    local left = #assigned / 2
    for i = 1, #assigned, 2 do
      if #taken + #settled >= limit then break end
      local id = assigned[i]
      local epoch = string.match(assigned[i + 1], '^(%d+):')
      local record = keys[4] .. id
      local f = redis.call('HMGET', record, 'owner', 'epoch', 'state')
      redis.call('HDEL', table_key, id)
      left = left - 1
      if f[2] == epoch and TERMINAL[f[3]] then
        redis.call('HSET', keys[2], id, epoch .. ':' .. int(now))
        settled[#settled + 1] = id
      elseif f[1] == who and f[2] == epoch then
        collect_stream(id, record, epoch)
      end
    end
    if left == 0 then
      redis.call('ZREM', keys[1], who)
      if string.sub(who, 1, #args[4]) == args[4] then redis.call('ZADD', keys[8], 0, who) end
      dead[#dead + 1] = who
    end
  end
  return { dead, taken, settled }
end)
