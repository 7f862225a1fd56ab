-- detach: a gateway wants a stream delivered no more.
-- KEYS  1 readers
-- ARGV  1 gateway
-- Returns how many gateways still read it.
define('detach', function(keys, args)
  redis.call('SREM', keys[1], args[1])
  return redis.call('SCARD', keys[1])
end)
