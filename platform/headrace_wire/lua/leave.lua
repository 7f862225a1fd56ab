-- leave: a caller cancels a stream that others may be given too.
-- KEYS  1 stream record prefix · 2 usage events · 3 soft limits that were passed
-- ARGV  1 stream id · 2 tenant id · 3 how long the record outlives the stream (ms)
-- Returns {'alone'}: nobody else has it, so it is cancelled as any stream, and nobody new is given it ·
--       {'left', host, 1 if nobody has the host any more}: only the caller's reading ends ·
--       {'moved', stream}: its shared stream failed, and it has that one instead.
define('leave', function(keys, args)
  local record = keys[1] .. args[1]
  local f = redis.call('HMGET', record, 'tenant', 'state', 'rides', 'keep', 'log_ttl_ms', 'second')
  if f[1] == args[2] and f[6] then return { 'moved', f[6] } end
  if f[1] ~= args[2] or TERMINAL[f[2]] then return { 'alone' } end
  if f[3] then
    local key = riders_of(keys[1] .. f[3])
    local packed = redis.call('HGET', key, args[1])
    if packed then
      redis.call('HDEL', key, args[1])
      local keep_ms = int((tonumber(f[5]) or 0) + tonumber(args[3]))
      rider_book(record, keys[2], keys[3], args[1], packed, 'cancelled', 'abort', { 0, 0 }, keep_ms, now_ms())
    end
    local is_last = redis.call('HGET', keys[1] .. f[3], 'left') and redis.call('HLEN', key) == 0
    return { 'left', f[3], is_last and 1 or 0 }
  end
  if not f[4] then return { 'alone' } end
  redis.call('HSET', record, 'left', '1')
  if redis.call('HLEN', riders_of(record)) == 0 then return { 'alone' } end
  return { 'left', args[1], 0 }
end)
