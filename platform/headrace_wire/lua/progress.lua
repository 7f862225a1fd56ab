-- progress: the owner has brought streams forward. Attempts count those in a row that did not, so that only a stream that
-- kills its workers runs out of them, and not its neighbours.
-- KEYS  1 stream record prefix
-- ARGV  pairs: stream id · epoch
-- Returns how many were the caller's.
define('progress', function(keys, args)
  local mine = 0
  for i = 1, #args, 2 do
    local record = keys[1] .. args[i]
    local f = redis.call('HMGET', record, 'epoch', 'state')
    if f[1] == args[i + 1] and OWNED[f[2]] then
      redis.call('HSET', record, 'attempts', '1')
      mine = mine + 1
    end
  end
  return mine
end)
