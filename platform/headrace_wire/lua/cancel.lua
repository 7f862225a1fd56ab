-- cancel: stop a stream, wherever it is. Idempotent.
-- KEYS  1 stream record · 2 queue prefix · 3 control prefix · 4 the caller's assignment table · 5 suspended streams
--       6 stream record prefix
-- ARGV  1 stream id · 2 tenant id · 3 reason · 4 caller's incarnation · 5 ControlMessage (msgpack) for the owner, or '': a
--       stream that has an owner goes on
-- Returns {where, epoch}: 'unknown' (none such, or another tenant's); 'ended'; 'running' (its owner was told, and the record
--       says so for the next renew; or it goes on); 'queued' (nobody served it: it left the queue, or was suspended, and now
--       belongs to the caller under `epoch`, who must end it).
define('cancel', function(keys, args)
  local f = redis.call('HMGET', keys[1], 'tenant', 'state', 'owner', 'epoch', 'deployment')
  if f[1] ~= args[2] then return { 'unknown', '0' } end
  if TERMINAL[f[2]] then return { 'ended', f[4] } end
  if f[2] == 'queued' or f[2] == 'suspended' then
    withdraw(keys[6], fair_keys(keys[2] .. f[5]), args[1])
    redis.call('ZREM', keys[5], args[1])
    redis.call('HSET', keys[1], 'state', 'running', 'cancel', args[3])
    return { 'queued', take(keys[1], keys[4], args[1], args[4], f[4], now_ms()) }
  end
  if args[5] == '' then return { 'running', f[4] } end
  redis.call('HSETNX', keys[1], 'cancel', args[3])
  -- Who is given another caller's stream has a record without an owner.
  if f[3] then redis.call('XADD', keys[3] .. f[3], 'NOMKSTREAM', 'MAXLEN', '~', 4096, '1-*', 'd', args[5]) end
  return { 'running', f[4] }
end)
