-- enter: make the record of a stream that was given from the response cache; its log is there already.
-- KEYS  1 stream record
-- ARGV  1 tenant id · 2 deployment · 3 state · 4 log TTL (ms) · 5 TTL of the record (ms)
-- Returns 1, or 0 when there is a record.
define('enter', function(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then return 0 end
  local now = int(now_ms())
  redis.call('HSET', keys[1], 'tenant', args[1], 'deployment', args[2], 'state', args[3], 'epoch', '1', 'log_ttl_ms', args[4],
    'admitted_ms', now, 'ended_ms', now)
  redis.call('PEXPIRE', keys[1], args[5])
  return 1
end)
