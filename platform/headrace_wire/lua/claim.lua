-- claim: give waiting streams to a worker that has room, in the fair queue's order.
-- KEYS  1 queue · 2 incarnations · 3 the worker's assignment table · 4 stream record prefix
-- ARGV  1 worker incarnation · 2 how many it wants
-- Returns 'lost' when the incarnation's lease has ended, else a list of
--       {stream id, epoch, admitted ms, claimed ms, attempt, 1 if its queue deadline has passed, request, token credit,
--       epoch of the owner before (0: it never had one)}.
define('claim', function(keys, args)
  local now = now_ms()
  local expiry = redis.call('ZSCORE', keys[2], args[1])
  if not expiry or tonumber(expiry) <= now then return 'lost' end
  local k, claimed, looks, wanted = fair_keys(keys[1]), {}, 0, tonumber(args[2])
  while #claimed < wanted do
    if looks == wanted + LOOKS then
      ring(k)  -- there may be more behind those that were parked
      break
    end
    looks = looks + 1
    local id = next_waiting(k)
    if not id then break end
    local record = keys[4] .. id
    local f = redis.call('HMGET', record, 'state', 'epoch', 'admitted_ms', 'deadline_ms', 'request', 'credit', 'caps', 'tenant',
      'band', 'weight', 'prompt')
    if f[1] ~= 'queued' or not f[5] then
      redis.call('SREM', k.waiting, id)
    elseif slots_take(keys[4], k, id, f[7], f[2] ~= '0') then
      redis.call('SREM', k.waiting, id)
      redis.call('ZREM', k.deadlines, id)
      local attempt = redis.call('HINCRBY', record, 'attempts', 1)
      local epoch = take(record, keys[3], id, args[1], f[2], now)
      redis.call('HSET', record, 'state', 'running')
      if f[2] == '0' then
        charge(k, tonumber(f[9]), f[8], tonumber(f[10]), INPUT_WEIGHT * (tonumber(f[11]) or 0))
      end
      claim_note(k, tonumber(f[9]), f[8], f[7] and cmsgpack.unpack(f[7]), now)
      -- One that was served before has met its deadline; its next is the reaper's.
      local late = f[2] == '0' and now > tonumber(f[4]) and 1 or 0
      claimed[#claimed + 1] = { id, epoch, f[3], int(now), attempt, late, f[5], f[6] or '0', f[2] }
    end
  end
  return claimed
end)
