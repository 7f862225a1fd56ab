-- enlist: start the lease of a new incarnation and create its channels. An incarnation is enlisted once in its life.
-- KEYS  1 incarnations · 2.. streams to create for it (control channel, or delivery streams)
-- ARGV  1 incarnation · 2 lease (ms)
-- Returns 1, or 0 when the incarnation was enlisted before.
define('enlist', function(keys, args)
  if redis.call('ZADD', keys[1], 'NX', int(now_ms() + tonumber(args[2])), args[1]) == 0 then return 0 end
  for i = 2, #keys do
    redis.call('XADD', keys[i], '1-*', 'd', '')
    redis.call('PEXPIRE', keys[i], args[2])
  end
  return 1
end)
