-- admit: decide over one stream, all or nothing. Idempotent by stream id.
-- KEYS  1 stream record · 2 queue · 3 bell · 4 idempotency key of the caller (optional)
-- ARGV  1 stream id · 2 tenant id · 3 deployment · 4 request (msgpack) · 5 queue limit (streams) · 6 queue deadline (ms from now)
--       7 record TTL while alive (ms) · 8 log TTL after the end (ms) · 9 token credit to start with (0: no limit)
--       10 value of the idempotency key · 11 its TTL (ms)
-- Returns {verdict, position}: 'queued' (position counts from 1), 'full' (position is the queue's length; nothing was
--       changed), 'known' for a repeated call (position 0), or 'duplicate' and the idempotency key's value when another
--       stream has that key (nothing was changed).
define('admit', function(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then return { 'known', 0 } end
  local other = keys[4] and redis.call('GET', keys[4])
  if other then return { 'duplicate', other } end
  local length = redis.call('LLEN', keys[2])
  if length >= tonumber(args[5]) then return { 'full', length } end
  if keys[4] then redis.call('SET', keys[4], args[10], 'PX', args[11]) end
  local now = now_ms()
  redis.call('HSET', keys[1], 'tenant', args[2], 'deployment', args[3], 'request', args[4], 'epoch', '0',
    'admitted_ms', int(now), 'deadline_ms', int(now + tonumber(args[6])), 'attempts', '0', 'log_ttl_ms', args[8], 'credit', args[9])
  redis.call('PEXPIRE', keys[1], args[7])
  return { 'queued', enqueue(keys[1], keys[2], keys[3], args[1], false) }
end)
