-- abandon: nobody reads a stream any more; where nobody is about to, no other caller is given it from here on.
-- KEYS  1 stream record
-- ARGV  1 how long one that was given it may take until it reads (ms)
-- Returns for how long somebody may still come (ms); 0: nobody, and nobody will.
define('abandon', function(keys, args)
  local key, now, wait = coming_of(keys[1]), now_ms(), 0
  local coming = redis.call('HGETALL', key)
  for i = 1, #coming, 2 do
    wait = math.max(wait, tonumber(coming[i + 1]) + tonumber(args[1]) - now)
  end
  if wait == 0 and redis.call('HEXISTS', keys[1], 'keep') == 1 then redis.call('HSET', keys[1], 'abandoned', '1') end
  return int(wait)
end)
