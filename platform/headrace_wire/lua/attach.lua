-- attach: a gateway wants a stream delivered from now on. Everything appended after this call is delivered to it; what came
-- before, it reads from the log.
-- KEYS  1 log · 2 readers
-- ARGV  1 gateway
-- Returns the id of the log's last entry, or '' when there is no log (any more).
define('attach', function(keys, args)
  local last = redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', 1)
  if #last == 0 then return '' end
  local others = readers_without(redis.call('GET', keys[2]), args[1])
  local readers = others == '' and args[1] or others .. ' ' .. args[1]
  redis.call('SET', keys[2], readers, 'PX', int(math.max(redis.call('PTTL', keys[1]), 1)))
  return last[1][1]
end)
