-- settle: end a stream exactly once, by its owner. Called after the terminal log entry was accepted, before it is published.
-- KEYS  1 stream record · 2 the owner's assignment table
-- It stays in the owner's table until a later renew: an owner that dies before it has published leaves it to the reaper.
-- ARGV  1 stream id · 2 epoch · 3 terminal state · 4 how long the record outlives the stream (ms)
-- Returns 1, or 0 when the caller is not the owner or the stream has ended already (nothing is changed).
define('settle', function(keys, args)
  local f = redis.call('HMGET', keys[1], 'epoch', 'state')
  if f[1] ~= args[2] or TERMINAL[f[2]] then return 0 end
  local now = int(now_ms())
  redis.call('HSET', keys[2], args[1], f[1] .. ':' .. now)
  redis.call('HSET', keys[1], 'state', args[3], 'ended_ms', now)
  redis.call('HDEL', keys[1], 'request', 'owner', 'cancel')
  redis.call('PEXPIRE', keys[1], args[4])
  return 1
end)
