-- tell: send control messages to the owners of streams (credit), or to a worker. A stream that has no owner is skipped.
-- KEYS  1 control prefix · 2 stream record prefix
-- ARGV  pairs: stream id or `@<incarnation>`, ControlMessage (msgpack)
-- Returns how many were handed over.
define('tell', function(keys, args)
  local told = 0
  for i = 1, #args, 2 do
    local owner
    if string.sub(args[i], 1, 1) == '@' then
      owner = string.sub(args[i], 2)
    else
      owner = redis.call('HGET', keys[2] .. args[i], 'owner')
    end
    if owner and owner ~= '' and redis.call('XADD', keys[1] .. owner, 'NOMKSTREAM', 'MAXLEN', '~', 4096, '1-*', 'd', args[i + 1]) then
      told = told + 1
    end
  end
  return told
end)
