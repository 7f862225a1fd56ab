-- breaker: file what a gateway saw of a deployment since it said so last, and say whether requests for it are admitted.
-- Each gateway calls it about once a second; the first call that finds it time moves the state, for all of them.
-- KEYS  1 breaker
-- ARGV  1 streams that have finished · 2 streams that workers have failed · 3 1 if a worker takes requests, else 0 · 4 1 if
--       somebody asked for the deployment, else 0 · 5 requests that this gateway would try it with · 6 share of failures that
--       opens it · 7 ends that this takes at least · 8 within so long (ms) · 9 time without a worker that opens it (ms), 0 for
--       never · 10 how long it is open (ms) · 11 requests that it is tried with · 12, 13 of the streams of 1 and 2, those that
--       tried it half open · 14 since when it had been half open then (Unix ms)
-- Returns {state, since when (Unix ms), reason, requests that this gateway may try it with, when it may be closed again (ms)}.
--
-- breaker_move: open it by hand, or close it. What was opened by hand stays until it is closed by hand.
-- KEYS  1 breaker
-- ARGV  1 open or closed
-- Returns the same.
do
  local SLOTS = 6
  local MOST_DOUBLINGS = 3
  local KEPT_MS = 604800000

  local function count(b, name, more)
    if more > 0 then b[name] = int((tonumber(b[name]) or 0) + more) end
  end

  -- Begin a state. What was counted in the one before says nothing of it.
  local function enter(b, state, reason, now)
    for name in pairs(b) do
      if string.match(name, '^[of]:') then b[name] = nil end
    end
    b.state, b.reason, b.since = state, reason, int(now)
    b.finished, b.failed, b.granted, b.granted_ms, b.asked = nil, nil, nil, nil, nil
    if state == 'closed' then b.again = nil end
    if state == 'open' then count(b, 'opened', 1) end
  end

  -- Return how many streams of the window have finished, and how many have failed; what is older goes.
  local function totals(b, slot)
    local finished, failed = 0, 0
    for name, value in pairs(b) do
      local kind, at = string.match(name, '^([of]):(%d+)$')
      at = tonumber(at)
      if kind and (at <= slot - SLOTS or at > slot) then
        b[name] = nil
      elseif kind == 'o' then
        finished = finished + tonumber(value)
      elseif kind == 'f' then
        failed = failed + tonumber(value)
      end
    end
    return finished, failed
  end

  -- Each time that it was tried in vain it stays open twice as long.
  local function open_ms(b, pause)
    return pause * 2 ^ math.min(tonumber(b.again) or 0, MOST_DOUBLINGS)
  end

  -- Let requests in to try the deployment with. Who was let in and is not heard of has left, or its gateway has died.
  local function grant(b, wanted, probes, pause, now)
    local out = tonumber(b.granted) or 0
    if out > 0 and now - (tonumber(b.granted_ms) or 0) >= pause then out = tonumber(b.finished) or 0 end
    local granted = math.max(0, math.min(wanted, probes - out))
    if granted > 0 then b.granted, b.granted_ms = int(out + granted), int(now) end
    return granted
  end

  -- Write what has changed; nearly always nothing has.
  local function store(key, was, b)
    local row, is_changed = {}, false
    for name, value in pairs(b) do
      row[#row + 1], row[#row + 2] = name, value
      is_changed = is_changed or was[name] ~= value
    end
    for name in pairs(was) do is_changed = is_changed or b[name] == nil end
    if not is_changed then return end
    redis.call('DEL', key)
    if row[1] then
      redis.call('HSET', key, unpack(row))
      redis.call('PEXPIRE', key, int(KEPT_MS))
    end
  end

  -- Return the breaker as it is, and a copy to change.
  local function load(key)
    local was, b = {}, {}
    local flat = redis.call('HGETALL', key)
    for i = 1, #flat, 2 do was[flat[i]], b[flat[i]] = flat[i + 1], flat[i + 1] end
    return was, b
  end

  define('breaker', function(keys, args)
    local n = {}
    for i = 1, 13 do n[i] = tonumber(args[i]) end
    local finished, failed, is_ready, is_asked, wanted = n[1], n[2], n[3] == 1, n[4] == 1, n[5]
    local share, fewest, window, absence, pause, probes = n[6], n[7], n[8], n[9], n[10], n[11]
    local now, was, b = now_ms(), load(keys[1])

    if is_ready then b.absent = nil elseif is_asked and not b.absent then b.absent = int(now) end
    local is_gone = absence > 0 and b.absent ~= nil and now - tonumber(b.absent) >= absence
    local state = b.state or 'closed'
    if state == 'closed' then
      local slot = math.floor(now * SLOTS / window)
      count(b, 'o:' .. int(slot), finished)
      count(b, 'f:' .. int(slot), failed)
      local good, bad = totals(b, slot)
      if is_gone then
        enter(b, 'open', 'absent', now)
      elseif bad > 0 and good + bad >= fewest and bad >= share * (good + bad) then
        enter(b, 'open', 'errors', now)
      end
    elseif state == 'open' and b.reason == 'hand' then
      redis.call('PEXPIRE', keys[1], int(KEPT_MS))  -- nothing else writes it for as long as it takes
    elseif state == 'open' and b.reason == 'absent' then
      if wanted > 0 then b.asked = int(now) end  -- for whoever starts workers: nobody waits in the queue
      if is_ready then enter(b, 'closed', '', now) end
    elseif state == 'open' then
      if is_ready and now - tonumber(b.since) >= open_ms(b, pause) then enter(b, 'half_open', b.reason, now) end
    else
      -- What began before it opened, or tried it an earlier time, says nothing of how it does now.
      if b.since == args[14] then
        count(b, 'finished', n[12])
        count(b, 'failed', n[13])
      end
      if b.failed then
        count(b, 'again', 1)
        enter(b, 'open', 'errors', now)
      elseif (tonumber(b.finished) or 0) >= probes then
        enter(b, 'closed', '', now)
      elseif is_gone then
        enter(b, 'open', 'absent', now)
      end
    end

    local granted, retry = 0, 1000
    if b.state == 'half_open' then
      granted = grant(b, wanted, probes, pause, now)
    elseif b.state == 'open' then
      retry = pause
      if b.reason == 'errors' then retry = math.max(1000, tonumber(b.since) + open_ms(b, pause) - now) end
    end
    store(keys[1], was, b)
    return { b.state or 'closed', b.since or '0', b.reason or '', int(granted), int(retry) }
  end)

  define('breaker_move', function(keys, args)
    local was, b = load(keys[1])
    local is_open = args[1] == 'open'
    if is_open then
      enter(b, 'open', 'hand', now_ms())
    elseif (b.state or 'closed') ~= 'closed' then
      enter(b, 'closed', '', now_ms())
    end
    b.again, b.absent = nil, nil
    store(keys[1], was, b)
    return { b.state or 'closed', b.since or '0', b.reason or '', '0', '1000' }
  end)
end
