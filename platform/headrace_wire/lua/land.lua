-- land: a finished stream is given to no new caller any more: its answer was kept, or is not to be.
-- KEYS  1 flight key of its request · 2 stream record
-- ARGV  1 stream id · 2 what stays of its KeepOrder (msgpack); '' for all of it
-- Returns 1, or 0 when another stream runs for the request.
define('land', function(keys, args)
  if args[2] ~= '' and redis.call('HEXISTS', keys[2], 'keep') == 1 then redis.call('HSET', keys[2], 'keep', args[2]) end
  if redis.call('GET', keys[1]) ~= args[1] then return 0 end
  return redis.call('DEL', keys[1])
end)
