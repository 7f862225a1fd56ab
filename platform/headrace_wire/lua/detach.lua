-- detach: a gateway wants a stream delivered no more.
-- KEYS  1 readers
-- ARGV  1 gateway
-- Returns how many gateways still read it.
define('detach', function(keys, args)
  local left, was_there = readers_without(redis.call('GET', keys[1]), args[1])
  if was_there then
    if left == '' then redis.call('DEL', keys[1]) else redis.call('SET', keys[1], left, 'KEEPTTL') end
  end
  local _, spaces = string.gsub(left, ' ', '')
  return left == '' and 0 or spaces + 1
end)
