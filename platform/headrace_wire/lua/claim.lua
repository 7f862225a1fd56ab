-- claim: give waiting streams to a worker that has room, in the fair queue's order.
-- KEYS  1 queue · 2 incarnations · 3 the worker's assignment table · 4 stream record prefix
-- ARGV  1 worker incarnation · 2 how many it wants · 3 how many spare places it has beyond these, for tenants of whom it serves
--       little · 4.. pairs tenant, how many of its streams it serves
-- Returns 'lost' when the incarnation's lease has ended, else a list of
--       {stream id, epoch, admitted ms, claimed ms, attempt, 1 if its queue deadline has passed, request, token credit,
--       epoch of the owner before (0: it never had one), what became of a preference: '' where there was none, 'taken' by the
--       worker that was preferred, 'expired' and taken by another, blocks of the prompt that this worker holds}.
define('claim', function(keys, args)
  local now = now_ms()
  local expiry = redis.call('ZSCORE', keys[2], args[1])
  if not expiry or tonumber(expiry) <= now then return 'lost' end
  local k, claimed, looks, wanted, spare = fair_keys(keys[1]), {}, 0, tonumber(args[2]), tonumber(args[3] or '0')
  local running, serves = {}, 0
  local places, workers = places_of(k, args[1])
  for i = 4, #args, 2 do
    running[args[i]] = tonumber(args[i + 1])
    serves = serves + running[args[i]]
  end
  local team, me, lately, left, elsewhere, in_turn, is_empty = nil, nil, 0, {}, {}, true, false

  -- Who else serves the deployment, as far as it matters here: this worker's own numbers are the newest.
  local function team_now()
    if not team then
      team = crew(k, now)
      for _, worker in ipairs(team) do
        if worker.who == args[1] then me, lately = worker, worker.lately end
      end
    end
    if me then me.running, me.lately = serves + #claimed, lately + #claimed end
    return team
  end

  -- Say whether a stream is to be left to another worker for now, and how much of its prompt is held here.
  local function left_to_other(record, prefix, until_ms, preferred)
    local best, most, own = best_holder(k, team_now(), prefix, args[1])
    local is_over = me and me.is_over
    if is_over then best = best or least_busy(team) end
    if now >= until_ms or not best or best.who == args[1] then return false, own end
    if most - own < WORTH_BLOCKS and not is_over then return false, own end
    if preferred ~= best.who then
      redis.call('HSET', record, 'preferred', best.who)
      ring_for(k, best.who)
    end
    return true, own
  end

  local function give(id)
    local record = keys[4] .. id
    local f = redis.call('HMGET', record, 'state', 'epoch', 'admitted_ms', 'deadline_ms', 'request', 'credit', 'caps', 'tenant',
      'band', 'weight', 'prompt', 'alone', 'expected_ms', 'expected_with', 'prefix', 'prefer_until', 'preferred',
      'avoid', 'avoid_until', 'attempts')
    if f[1] ~= 'queued' or not f[5] then
      redis.call('SREM', k.waiting, id)
      return
    end
    if f[18] == args[1] and now < tonumber(f[19]) then
      elsewhere[#elsewhere + 1] = id
      return
    end
    local is_left, own = false, 0
    if f[15] and workers > 1 and f[2] == '0' then
      is_left, own = left_to_other(record, f[15], tonumber(f[16]), f[17])
    end
    if is_left then
      left[#left + 1] = { record, id, f[8], tonumber(f[9]) }
      if in_turn then redis.call('HINCRBY', k.pace, 'turn', -1) end
    elseif slots_take(keys[4], k, id, f[7], f[2] ~= '0') then
      redis.call('SREM', k.waiting, id)
      redis.call('ZREM', k.deadlines, id)
      local attempt, slots = (tonumber(f[20]) or 0) + 1, f[7] and { 'slots', f[7] } or {}
      local epoch = take(record, keys[3], id, args[1], f[2], now, 'state', 'running', 'attempts', attempt, unpack(slots))
      if f[18] then redis.call('HDEL', record, 'avoid', 'avoid_until') end
      local is_new = f[2] == '0'
      if is_new then
        charge(k, tonumber(f[9]), f[8], tonumber(f[10]), INPUT_WEIGHT * (tonumber(f[11]) or 0))
      end
      local caps = f[7] and cmsgpack.unpack(f[7])
      claim_note(k, args[1], places, tonumber(f[9]), f[8], caps, now, is_new and { f[3], f[12], f[13], f[14] })
      running[f[8]] = (running[f[8]] or 0) + 1
      local preference = f[17] and (f[17] == args[1] and 'taken' or 'expired') or ''
      if f[15] and workers > 1 then
        held_note(k, args[1], f[15])
        redis.call('HDEL', record, 'prefix', 'prefer_until')
      end
      -- One that was served before has met its deadline; its next is the reaper's.
      local late = is_new and now > tonumber(f[4]) and 1 or 0
      claimed[#claimed + 1] = { id, epoch, f[3], int(now), attempt, late, f[5], f[6] or '0', f[2], preference, own }
    end
  end

  local function fill(up_to, next_one)
    while #claimed < up_to do
      if looks == wanted + spare + LOOKS then
        if not left[1] then ring(k) end  -- there may be more behind those that were parked
        return
      end
      if #left == MOST_LEFT then return end
      looks = looks + 1
      local id = next_one()
      if not id then
        is_empty = in_turn
        return
      end
      give(id)
    end
  end

  fill(wanted, function() return next_waiting(k) end)
  in_turn = false
  if #claimed == wanted then fill(wanted + spare, function() return next_for_spare(k, running) end) end
  -- Streams that this worker was told to leave to others: these hear of them, for it was perhaps we who heard the bell.
  for i = #elsewhere, 1, -1 do redis.call('LPUSH', k.queue, elsewhere[i]) end
  if elsewhere[1] then
    for _, worker in ipairs(team_now()) do
      if worker.who ~= args[1] then ring_for(k, worker.who) end
    end
  end
  for i = #left, 1, -1 do lane_return(k, unpack(left[i])) end
  -- Of those that came together each has rung. Nobody waits any more: who heard the rest of it would come in vain, we first.
  if is_empty and #claimed > 1 and not left[1] and not elsewhere[1] then redis.call('DEL', k.bell) end
  if workers > 1 then
    team_now()
    redis.call('HSET', k.pace, 'running:' .. args[1], int(serves + #claimed))
    if me and claimed[1] then redis.call('HSET', k.pace, 'lately:' .. args[1], string.format('%.3f ', me.lately) .. int(now)) end
  end
  return claimed
end)
