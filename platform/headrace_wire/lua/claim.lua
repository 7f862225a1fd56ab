-- claim: give waiting streams to a worker that has room, in the fair queue's order.
-- KEYS  1 queue · 2 incarnations · 3 the worker's assignment table · 4 stream record prefix
-- ARGV  1 worker incarnation · 2 how many it wants · 3 how many spare places it has beyond these, for tenants of whom it serves
--       little · 4.. pairs tenant, how many of its streams it serves
-- Returns 'lost' when the incarnation's lease has ended, else a list of
--       {stream id, epoch, admitted ms, claimed ms, attempt, 1 if its queue deadline has passed, request, token credit,
--       epoch of the owner before (0: it never had one)}.
define('claim', function(keys, args)
  local now = now_ms()
  local expiry = redis.call('ZSCORE', keys[2], args[1])
  if not expiry or tonumber(expiry) <= now then return 'lost' end
  local k, claimed, looks, wanted, spare = fair_keys(keys[1]), {}, 0, tonumber(args[2]), tonumber(args[3] or '0')
  local running, places = {}, places_of(k, args[1])
  for i = 4, #args, 2 do running[args[i]] = tonumber(args[i + 1]) end

  local function give(id)
    local record = keys[4] .. id
    local f = redis.call('HMGET', record, 'state', 'epoch', 'admitted_ms', 'deadline_ms', 'request', 'credit', 'caps', 'tenant',
      'band', 'weight', 'prompt', 'alone', 'expected_ms', 'expected_with')
    if f[1] ~= 'queued' or not f[5] then
      redis.call('SREM', k.waiting, id)
    elseif slots_take(keys[4], k, id, f[7], f[2] ~= '0') then
      redis.call('SREM', k.waiting, id)
      redis.call('ZREM', k.deadlines, id)
      local attempt = redis.call('HINCRBY', record, 'attempts', 1)
      local epoch = take(record, keys[3], id, args[1], f[2], now)
      redis.call('HSET', record, 'state', 'running')
      local is_new = f[2] == '0'
      if is_new then
        charge(k, tonumber(f[9]), f[8], tonumber(f[10]), INPUT_WEIGHT * (tonumber(f[11]) or 0))
      end
      local caps = f[7] and cmsgpack.unpack(f[7])
      claim_note(k, args[1], places, tonumber(f[9]), f[8], caps, now, is_new and { f[3], f[12], f[13], f[14] })
      running[f[8]] = (running[f[8]] or 0) + 1
      -- One that was served before has met its deadline; its next is the reaper's.
      local late = is_new and now > tonumber(f[4]) and 1 or 0
      claimed[#claimed + 1] = { id, epoch, f[3], int(now), attempt, late, f[5], f[6] or '0', f[2] }
    end
  end

  local function fill(up_to, next_one)
    while #claimed < up_to do
      if looks == wanted + spare + LOOKS then
        ring(k)  -- there may be more behind those that were parked
        return
      end
      looks = looks + 1
      local id = next_one()
      if not id then return end
      give(id)
    end
  end

  fill(wanted, function() return next_waiting(k) end)
  if #claimed == wanted then fill(wanted + spare, function() return next_for_spare(k, running) end) end
  return claimed
end)
