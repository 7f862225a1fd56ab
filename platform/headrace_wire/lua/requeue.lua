-- requeue: an owner (a reaper, or a worker that cannot go on) gives a stream back to be continued by another one.
-- KEYS  1 stream record · 2 the owner's assignment table · 3 queue · 4 bell · 5 suspended streams · 6 stream record prefix
-- ARGV  1 stream id · 2 epoch · 3 attempts that are allowed in all · 4 1 if this attempt counts as one, 0 if the stream did
--       not cause its end (a drain, or it never reached the engine) · where it is to go elsewhere: 5 the incarnation that
--       leaves it to others · 6 for how long (ms)
-- Returns 'queued' (at the head); 'exhausted' when the attempts are used up, or 'cancelled' when its client has cancelled it
--       (the caller still owns it and must end it); 'lost' when the caller is not the owner (nothing is changed).
define('requeue', function(keys, args)
  local f = redis.call('HMGET', keys[1], 'epoch', 'state', 'attempts', 'cancel')
  if f[1] ~= args[2] or not OWNED[f[2]] then return 'lost' end
  if f[4] then return 'cancelled' end
  if args[4] == '0' then
    redis.call('HINCRBY', keys[1], 'attempts', -1)
  elseif tonumber(f[3] or '0') >= tonumber(args[3]) then
    return 'exhausted'
  end
  redis.call('HDEL', keys[2], args[1])
  if args[5] then redis.call('HSET', keys[1], 'avoid', args[5], 'avoid_until', int(now_ms() + tonumber(args[6]))) end
  enqueue_ahead(keys[6], keys[3], args[1])
  return 'queued'
end)
