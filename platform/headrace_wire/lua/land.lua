-- land: a finished stream is given to no new caller any more: its answer was kept, or is not to be.
-- KEYS  1 flight key of its request
-- ARGV  1 stream id
-- Returns 1, or 0 when another stream runs for the request.
define('land', function(keys, args)
  if redis.call('GET', keys[1]) ~= args[1] then return 0 end
  return redis.call('DEL', keys[1])
end)
