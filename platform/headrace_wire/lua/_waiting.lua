-- What those who wait are told: where they stand, and how long it may take.
--
-- Each worker's claims are timed, times its places: what one place takes for a stream, however many workers there are. How many
-- claims of anybody lie between two of a tenant's is counted. So a worker that goes, or comes, is told at once. Keys:
-- `redis_keys`, Fair queue.

-- How much the newest counts of intervals (of a worker: of those that one place has), and of costs.
local PACE_SHARE, PLACE_SHARE, MEAN_SHARE = 0.1, 0.01, 0.05
-- Lanes that are looked at to say where somebody stands; of more, every n-th stands for n.
local LANES_SEEN = 16
local PACE_SAMPLES = 5
-- What is told travels, and so does what ends the wait: shorter times are not told apart.
local NEWS_MS = 50
local SPREAD_STEP, SPREAD_SAMPLES = 0.1, 20
-- Share of waits on either side of the range: less than a tenth, so that 8 of 10 are inside also while things change.
local TAIL = 0.06

-- ---- places

-- Note how many streams a worker of the deployment runs at once, until its lease ends.
local function places_note(k, who, places, expiry, now)
  local before = redis.call('ZRANGE', k.places, 0, -1, 'WITHSCORES')
  for i = 1, #before, 2 do
    local other = string.match(before[i], '^(.*) %d+$')
    if other == who or tonumber(before[i + 1]) <= now then
      redis.call('ZREM', k.places, before[i])
      if other ~= who then redis.call('HDEL', k.pace, 'claim:' .. other, 'places:' .. other, 'running:' .. other, 'lately:' .. other) end
    end
  end
  if places > 0 then redis.call('ZADD', k.places, int(expiry), who .. ' ' .. int(places)) end
  local sum, latest = 0, 0
  local known = redis.call('ZRANGE', k.places, 0, -1, 'WITHSCORES')
  for i = 1, #known, 2 do
    sum = sum + tonumber(string.match(known[i], ' (%d+)$'))
    latest = tonumber(known[i + 1])
  end
  redis.call('PEXPIRE', k.places, KEPT)
  redis.call('HSET', k.pace, 'places', int(sum), 'places_until', int(latest), 'places:' .. who, int(places),
    'workers', #known / 2)
  redis.call('PEXPIRE', k.pace, KEPT)
end

-- How many streams the deployment's workers run at once, by its pace's `places` and `places_until`; nil where none has said.
local function places_of_all(places, until_ms, now)
  if not places then return nil end
  return now <= tonumber(until_ms) and tonumber(places) or 0
end

-- How many streams a worker runs at once, 1 where it has not said; and how many workers serve the deployment.
local function places_of(k, who)
  local f = redis.call('HMGET', k.pace, 'places:' .. who, 'workers')
  return tonumber(f[1]) or 1, tonumber(f[2]) or 1
end

-- ---- positions

-- Streams that will be claimed before number `index` of a lane, and itself: its own, those ahead, those of higher bands, and
-- of the other lanes of its band those whose turn comes first if all cost what streams cost lately.
-- Returns the place (1: next), 0, how many of those before it were served before, and how many are of higher bands.
local function lane_position(k, band, tenant, index)
  local ahead, above, before = redis.call('LLEN', k.queue), 0, 0
  for higher = 0, band - 1 do above = above + (tonumber(redis.call('HGET', k.served(higher), 'n')) or 0) end
  local served = k.served(band)
  local f = redis.call('HMGET', served, 'mean', 'c:' .. tenant)
  local mean, own = math.max(1, tonumber(f[1] or 100)), tonumber(f[2] or 0)
  -- Only lanes that were served less than what this one will have been.
  local least = string.format('(%.3f', own + (index - 1) * mean)
  local others = redis.call('ZCOUNT', k.band(band), '-inf', least)
  local stride = math.max(1, math.ceil(others / LANES_SEEN))
  for rank = 0, others - 1, stride do
    local lane = redis.call('ZRANGE', k.band(band), rank, rank, 'WITHSCORES')
    if lane[1] ~= tenant then
      local turns = math.ceil(index - 1 + (own - tonumber(lane[2])) / mean)
      if turns > 0 then before = before + stride * math.min(turns, redis.call('LLEN', k.lane(band, lane[1]))) end
    end
  end
  return ahead + above + before + index, 0, ahead, above
end

-- ---- pace

-- Before anything was measured: {mean, samples}; {logarithms of a half and of two, samples}.
local NONE_YET = { 0, 0 }
local NO_SPREAD = { -0.6931471805599453, 0.6931471805599453, 0 }

local function unpacked(packed, otherwise)
  return packed and cmsgpack.unpack(packed) or otherwise
end

-- A mean and how many values it is of; `share` is how much the newest counts.
local function mean_step(packed, value, share)
  local f = unpacked(packed, NONE_YET)
  share = math.max(share, 1 / (f[2] + 1))
  return cmsgpack.pack({ f[1] * (1 - share) + value * share, math.min(f[2] + 1, 1000) })
end

-- How waits compare with what was expected: {logarithms of the ratio that few stay below, and above; samples}.
-- Each is moved by whether the newest wait was beyond it, so that it settles where `TAIL` is.
local function spread_step(packed, ratio)
  local low, high, samples = unpack(unpacked(packed, NO_SPREAD))
  local step = math.max(SPREAD_STEP, 1 / (samples + 2))
  low = low + step * (ratio < low and TAIL - 1 or TAIL)
  high = high + step * (ratio > high and 1 - TAIL or -TAIL)
  return cmsgpack.pack({ low, high, math.min(samples + 1, 1000) })
end

-- Note a worker's claim of a tenant's stream. Time, and claims, count while somebody waits. `f` of a stream that was not served
-- before: {when it was admitted, 1 if none of its tenant's waited then, how long it was expected to wait, and with how many places}.
local function claim_note(k, who, own_places, band, tenant, caps, now, f)
  local served = k.served(band)
  local p = redis.call('HMGET', k.pace, 'number', 'claim:' .. who, 'place', 'spread', 'places', 'places_until')
  local s = redis.call('HMGET', served, 'claim:' .. tenant, 'turns:' .. tenant, 'alone:' .. tenant, 'spread:' .. tenant)
  local number, last, before = (tonumber(p[1]) or 0) + 1, unpacked(p[2], NONE_YET), unpacked(s[1], NONE_YET)
  local waits = redis.call('SCARD', k.waiting) > 0
  local more = redis.call('EXISTS', k.lane(band, tenant)) == 1
  for _, cap in ipairs(caps or {}) do more = more or redis.call('EXISTS', k.parked(cap[1])) == 1 end
  -- One HSET for each key: with a call for each of these a claim would take half as long again.
  local of_all = { 'number', number, 'claim:' .. who, cmsgpack.pack({ now, waits and 1 or 0 }) }
  local of_tenant = { 'claim:' .. tenant, cmsgpack.pack({ number, more and 1 or 0 }) }
  local function note(fields, name, packed) fields[#fields + 1], fields[#fields + 2] = name, packed end

  if last[2] == 1 then
    note(of_all, 'place', mean_step(p[3], (now - last[1]) * own_places, math.max(PLACE_SHARE, PACE_SHARE / own_places)))
  end
  if before[2] == 1 then note(of_tenant, 'turns:' .. tenant, mean_step(s[2], number - before[1], PACE_SHARE)) end
  if f then
    local places, waited = places_of_all(p[5], p[6], now) or 1, now - tonumber(f[1])
    if f[2] then note(of_tenant, 'alone:' .. tenant, mean_step(s[3], waited * places, PACE_SHARE)) end
    if f[3] and tonumber(f[4]) == places then
      local ratio = math.log((waited + NEWS_MS) / (tonumber(f[3]) + NEWS_MS))
      note(of_tenant, 'spread:' .. tenant, spread_step(s[4], ratio))
      note(of_all, 'spread', spread_step(p[4], ratio))
    end
  end
  redis.call('HSET', k.pace, unpack(of_all))
  redis.call('HSET', served, unpack(of_tenant))
end

-- How long a stream waits: for `index` claims of its tenant; or as long as one that came while none of its tenant's waited (`alone`);
-- or for `place` claims of anybody, where that was not measured yet or some (`ahead`) go before all.
-- Returns expected (ms), the ratios of it between which 8 of 10 waits are, samples, places of all workers (-1: unknown).
local function pace_of(k, band, tenant, index, place, ahead, alone)
  local p = redis.call('HMGET', k.pace, 'places', 'places_until', 'place', 'spread')
  local places = places_of_all(p[1], p[2], now_ms())
  if places == 0 then return { '0', '0', '0', 0, 0 } end  -- nobody is there to serve it
  local s = redis.call('HMGET', k.served(band), 'alone:' .. tenant, 'turns:' .. tenant, 'spread:' .. tenant)
  local of_place, turns = unpacked(p[3], NONE_YET), unpacked(s[2], NONE_YET)
  local of_alone = alone and unpacked(s[1], NONE_YET) or NONE_YET
  local expected, samples = place * of_place[1], of_place[2]
  if of_alone[2] >= PACE_SAMPLES and ahead == 0 then
    expected, samples = of_alone[1], of_alone[2]
  elseif turns[2] >= PACE_SAMPLES and ahead == 0 then
    expected = index * turns[1] * of_place[1]
  end
  local spread = unpacked(s[3], NO_SPREAD)
  if spread[3] < SPREAD_SAMPLES then spread = unpacked(p[4], NO_SPREAD) end
  return { tostring(expected / (places or 1)), tostring(math.exp(spread[1])), tostring(math.exp(spread[2])), int(samples),
    places or -1 }
end

-- Where a waiting stream stands: what `lane_position` returns (its second is 1 if its own limit keeps it), then what `pace_of`
-- does. Nil when it does not wait.
local function position_of(record_prefix, k, id)
  local f = redis.call('HMGET', record_prefix .. id, 'tenant', 'band', 'parked', 'epoch', 'lane_no', 'state', 'alone')
  if f[6] ~= 'queued' then return nil end
  local band, place = tonumber(f[2]) or 1, nil
  if f[3] then
    place = { (redis.call('LPOS', k.parked(f[3]), id) or 0) + 1, 1, 0, 0 }
  elseif f[4] ~= '0' then
    place = { (redis.call('LPOS', k.queue, id) or 0) + 1, 0, 0, 0 }
  else
    local out = tonumber(redis.call('HGET', k.served(band), 'out:' .. f[1])) or 0
    local index = math.max(1, math.min((tonumber(f[5]) or 1) - out, redis.call('LLEN', k.lane(band, f[1]))))
    place = { lane_position(k, band, f[1], index) }
    return place, pace_of(k, band, f[1], index, place[1], place[3], f[7])
  end
  return place, pace_of(k, band, f[1], place[1], place[1], 0, nil)
end

-- Note what a stream cost in all, weighted, for the guess of turns.
local function mean_note(k, band, cost)
  local served = k.served(band)
  local mean = tonumber(redis.call('HGET', served, 'mean'))
  redis.call('HSET', served, 'mean', string.format('%.3f', mean and mean * (1 - MEAN_SHARE) + cost * MEAN_SHARE or cost))
end
