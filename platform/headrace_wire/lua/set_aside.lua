-- set_aside: end a stream whose settlement fails for a reason of its own, without booking it. What it used waits for a person.
-- KEYS  1 stream record · 2 the owner's assignment table · 3 settlements that were set aside · 4 queue prefix
--       5 stream record prefix
-- ARGV  1 stream id · 2 epoch · 3 terminal state · 4 how long the record outlives the stream (ms) · 5 finish reason
--       6 prompt tokens · 7 those from the prefix cache · 8 completion tokens (as `settle`) · 9 why it cannot be settled
-- The record keeps what `settle` needs, but not the request. Slots of parallel requests are given back as far as that works.
-- Returns 1, or 0 when the caller is not the owner or the stream has ended already (nothing is changed).
--
-- settle_again: make such a stream one that `settle` takes, for the call that comes next.
-- KEYS  1 stream record
-- ARGV  1 epoch
-- Returns 1, or 0 when there is none (any more).
--
-- end_again: the other way round, where that settlement fails again.
-- KEYS  1 stream record
-- ARGV  1 terminal state
-- Returns 1.
do
  local KEPT_MS = 3456000000  -- 40 days, as budgets are kept

  define('set_aside', function(keys, args)
    local is_record = redis.call('TYPE', keys[1]).ok == 'hash'
    local f = is_record and redis.call('HMGET', keys[1], 'epoch', 'state', 'deployment', 'slots', 'tenant', 'owner') or {}
    if is_record and (f[1] ~= args[2] or TERMINAL[f[2]]) then return 0 end
    local now = int(now_ms())
    redis.call('XADD', keys[3], '*', 'stream', args[1], 'epoch', args[2], 'state', args[3], 'keep_ms', args[4],
      'finish', args[5], 'prompt', args[6], 'cached', args[7], 'completion', args[8], 'problem', args[9],
      'tenant', f[5] or '', 'deployment', f[3] or '', 'owner', f[6] or '')
    redis.call('HSET', keys[2], args[1], args[2] .. ':' .. now)
    if not is_record then return 1 end
    if f[3] and f[4] then pcall(slots_give_back, keys[5], fair_keys(keys[4] .. f[3]), args[1], f[4]) end
    redis.call('HSET', keys[1], 'state', args[3], 'ended_ms', now, 'aside', '1')
    redis.call('HDEL', keys[1], 'request')
    redis.call('PEXPIRE', keys[1], int(math.max(tonumber(args[4]), KEPT_MS)))
    return 1
  end)

  define('settle_again', function(keys, args)
    local f = redis.call('HMGET', keys[1], 'epoch', 'aside')
    if f[1] ~= args[1] or not f[2] then return 0 end
    redis.call('HSET', keys[1], 'state', 'running')
    return 1
  end)

  define('end_again', function(keys, args)
    redis.call('HSET', keys[1], 'state', args[1])
    return 1
  end)
end
