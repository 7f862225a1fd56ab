-- reap: take the streams of incarnations whose lease has ended. The caller becomes their owner under a new epoch, so that a
-- woken owner is fenced, and must bring each of them to an end (or back into the queue).
-- KEYS  1 incarnations · 2 the caller's assignment table · 3 assignment prefix · 4 stream record prefix
-- ARGV  1 caller's incarnation · 2 how many at most
-- Returns {dead, taken}: dead: incarnations removed; taken: list of {stream id, epoch, tenant, deployment, attempts, log ttl ms, cancel reason or '', request}.
define('reap', function(keys, args)
  local now = now_ms()
  local me, limit = args[1], tonumber(args[2])
  local mine = redis.call('ZSCORE', keys[1], me)
  if not mine or tonumber(mine) <= now then return { {}, {} } end
  local dead, taken = {}, {}
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', keys[1], '-inf', int(now), 'LIMIT', 0, 16)) do
    local table_key = keys[3] .. who
    local assigned = redis.call('HGETALL', table_key)
    local left = #assigned / 2
    for i = 1, #assigned, 2 do
      if #taken >= limit then break end
      local id = assigned[i]
      local epoch = string.match(assigned[i + 1], '^(%d+):')
      local record = keys[4] .. id
      local f = redis.call('HMGET', record, 'owner', 'epoch', 'state', 'tenant', 'deployment', 'attempts', 'log_ttl_ms', 'cancel', 'request')
      redis.call('HDEL', table_key, id)
      left = left - 1
      if f[1] == who and f[2] == epoch and not TERMINAL[f[3]] then
        local mine_now = take(record, keys[2], id, me, epoch, now)
        taken[#taken + 1] = { id, mine_now, f[4], f[5], f[6], f[7], f[8] or '', f[9] or '' }
      end
    end
    if left == 0 then
      redis.call('ZREM', keys[1], who)
      dead[#dead + 1] = who
    end
  end
  return { dead, taken }
end)
