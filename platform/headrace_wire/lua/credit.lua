-- credit: let streams generate further. Absolute positions; a lower or repeated one changes nothing.
-- KEYS  1 stream record prefix · 2 control prefix · 3 queue prefix · 4 bell prefix · 5 suspended streams
-- ARGV  triples: stream id · position up to which it may generate · ControlMessage (msgpack Credit) for its owner
-- The owner is told; a suspended stream goes back to the head of its queue.
-- Returns how many streams got more than they had.
define('credit', function(keys, args)
  local raised = 0
  for i = 1, #args, 3 do
    local id, record = args[i], keys[1] .. args[i]
    local f = redis.call('HMGET', record, 'state', 'credit', 'owner', 'deployment')
    if f[1] and not TERMINAL[f[1]] and tonumber(args[i + 1]) > (tonumber(f[2]) or 0) then
      redis.call('HSET', record, 'credit', args[i + 1])
      raised = raised + 1
      if f[1] == 'suspended' then
        redis.call('ZREM', keys[5], id)
        enqueue_ahead(keys[1], keys[3] .. f[4], id)
      elseif f[3] and f[3] ~= '' then
        redis.call('XADD', keys[2] .. f[3], 'NOMKSTREAM', 'MAXLEN', '~', 4096, '1-*', 'd', args[i + 2])
      end
    end
  end
  return raised
end)
