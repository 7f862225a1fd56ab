-- suspend: the owner gives a stream up until its reader comes on. Its log and token ids are all that is needed to go on.
-- KEYS  1 stream record · 2 the owner's assignment table · 3 queue · 4 bell · 5 suspended streams · 6 stream record prefix
-- ARGV  1 stream id · 2 epoch · 3 token credit that the owner knew · 4 reason
-- Returns 'suspended'; 'queued' when more credit has come meanwhile (it waits at the head of the queue); 'cancelled' when its
--       client has cancelled it (the caller still owns it and must end it); 'lost' when the caller is not the owner (nothing
--       is changed).
define('suspend', function(keys, args)
  local f = redis.call('HMGET', keys[1], 'epoch', 'state', 'credit', 'cancel')
  if f[1] ~= args[2] or not OWNED[f[2]] then return 'lost' end
  if f[4] then return 'cancelled' end
  redis.call('HDEL', keys[2], args[1])
  -- A suspension is no failure: it does not count against the attempts.
  redis.call('HINCRBY', keys[1], 'attempts', -1)
  redis.call('HSET', keys[1], 'reason', args[4])
  if tonumber(f[3] or '0') > tonumber(args[3]) then
    enqueue_ahead(keys[6], keys[3], args[1])
    return 'queued'
  end
  slots_release(keys[6], fair_keys(keys[3]), args[1])
  redis.call('HSET', keys[1], 'state', 'suspended', 'owner', '')
  redis.call('ZADD', keys[5], int(now_ms()), args[1])
  return 'suspended'
end)
