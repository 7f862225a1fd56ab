-- renew: keep an incarnation's lease, and compare what it works on with what it owns. Expiry is final.
-- KEYS  1 incarnations · 2 assignment table · 3 stream record prefix · 4 queue prefix · 5 bell prefix · 6.. channels to keep alive
-- ARGV  1 incarnation · 2 lease (ms) · 3 grace for assigned streams that are not listed (ms) · 4 deployment that it serves, or ''
--       5 how many streams it runs at once · then triples stream id, epoch, tokens that it has generated
-- Returns {alive, lost, cancelled}: alive 0 means that the lease had ended (the caller starts anew, empty); lost: stream ids
--       that belong to somebody else now; cancelled: flat list stream id, reason.
define('renew', function(keys, args)
  local now = now_ms()
  local me, lease = args[1], tonumber(args[2])
  local expiry = redis.call('ZSCORE', keys[1], me)
  if not expiry or tonumber(expiry) <= now then return { 0, {}, {} } end
  redis.call('ZADD', keys[1], 'XX', int(now + lease), me)
  for i = 6, #keys do redis.call('PEXPIRE', keys[i], lease) end
  if args[4] ~= '' then places_note(fair_keys(keys[4] .. args[4]), me, tonumber(args[5]), now + lease, now) end

  local lost, cancelled, listed, queues, charges = {}, {}, {}, {}, {}
  for i = 6, #args, 3 do
    local id, epoch = args[i], args[i + 1]
    listed[id] = true
    local f = redis.call('HMGET', keys[3] .. id, 'owner', 'epoch', 'cancel', 'state', 'deployment', 'tenant', 'band', 'weight',
      'charged')
    if f[1] ~= me or f[2] ~= epoch or TERMINAL[f[4]] then
      lost[#lost + 1] = id
    else
      local generated = tonumber(args[i + 2])
      local more = generated - (tonumber(f[9]) or 0)
      if more > 0 and f[6] then
        redis.call('HSET', keys[3] .. id, 'charged', int(generated))
        -- Of a tenant's thousand streams, each would move the same counter.
        local lane = table.concat({ f[5], f[6], f[7] or '', f[8] or '' }, '\0')
        local c = charges[lane]
        if c then
          c[5] = c[5] + OUTPUT_WEIGHT * more
        else
          if not queues[f[5]] then queues[f[5]] = fair_keys(keys[4] .. f[5]) end
          charges[lane] = { queues[f[5]], tonumber(f[7]) or 1, f[6], tonumber(f[8]) or 1, OUTPUT_WEIGHT * more }
        end
      end
      if f[3] then
        cancelled[#cancelled + 1] = id
        cancelled[#cancelled + 1] = f[3]
      end
    end
  end
  for _, c in pairs(charges) do charge(unpack(c)) end

  -- A claim whose answer got lost: assigned here, unknown to the owner. Back to the head of the queue. (One that was settled
  -- meanwhile only leaves the table.)
  local assigned = redis.call('HGETALL', keys[2])
  for i = 1, #assigned, 2 do
    local id = assigned[i]
    local epoch, since = string.match(assigned[i + 1], '^(%d+):(%d+)$')
    if not listed[id] and now - tonumber(since) > tonumber(args[3]) then
      redis.call('HDEL', keys[2], id)
      local record = keys[3] .. id
      local f = redis.call('HMGET', record, 'owner', 'epoch', 'state', 'deployment')
      if f[1] == me and f[2] == epoch and OWNED[f[3]] then
        enqueue_ahead(keys[3], keys[4] .. f[4], id)
      end
    end
  end
  return { 1, lost, cancelled }
end)
