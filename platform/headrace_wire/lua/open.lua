-- open: create a stream's log. Only this function creates one; every later append says NOMKSTREAM.
-- KEYS  1 log · 2 readers
-- ARGV  1 entry (msgpack Opened) · 2 TTL while alive (ms) · 3.. gateways that read it
-- Returns 1, or 0 when the log exists.
define('open', function(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then return 0 end
  redis.call('XADD', keys[1], '1-0', 'd', args[1])
  redis.call('PEXPIRE', keys[1], args[2])
  if #args > 2 then redis.call('SET', keys[2], table.concat(args, ' ', 3), 'PX', args[2]) end
  return 1
end)
