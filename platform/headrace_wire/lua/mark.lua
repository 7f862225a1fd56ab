-- mark: the owner says how its streams do (running, held), for people who look; nothing is decided by it.
-- KEYS  1 stream record prefix
-- ARGV  quadruples: stream id · epoch · state (running, held) · reason
-- Returns how many were the caller's.
define('mark', function(keys, args)
  local marked = 0
  for i = 1, #args, 4 do
    local record = keys[1] .. args[i]
    local f = redis.call('HMGET', record, 'epoch', 'state')
    if f[1] == args[i + 1] and OWNED[f[2]] then
      redis.call('HSET', record, 'state', args[i + 2], 'reason', args[i + 3])
      marked = marked + 1
    end
  end
  return marked
end)
