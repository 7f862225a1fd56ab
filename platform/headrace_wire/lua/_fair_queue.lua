-- The fair queue of a deployment (VTC: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).
--
-- Tenants have lanes, lanes lie in priority bands. The next stream comes from the highest band that has one, there from the
-- lane of the tenant that was served least: each has a counter of what it was served, prompt tokens once and generated ones
-- twice, over its weight. A tenant that comes back is lifted to the least counter of those that wait: it cannot save up.
-- Streams that had been served before (requeued, or resumed from a suspension) go ahead of all lanes, from the queue's list.
-- A stream whose parallel requests are used up is parked with the quota that stops it, out of the others' way, and returns to
-- the head of its lane when a slot of that quota becomes free. Keys: `redis_keys`, Fair queue.

local BANDS = 4
local INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2
-- Every 8th stream is looked for one band lower first, every 64th two, every 512th three, so that no band starves.
local AGING = 8
-- How many streams beyond the wanted ones a claim looks at, so that a claim among thousands of parked ones stays short.
local LOOKS = 64
-- A tenant may have so many times what is free in a queue: one alone three quarters of it, and there is always room for others
-- (dynamic thresholds: Choudhury and Hahne, 1998).
local SHARE_OF_FREE = 3
-- How many lanes are looked at to find one for a spare place.
local SPARE_LOOKS = 64
local DEADLINE_GRACE = 2000
local KEPT = 86400000

local function fair_keys(queue_key)
  local tag, deployment = string.match(queue_key, '^(.-):queue:(.*)$')
  return {
    queue = queue_key,
    deadlines = tag .. ':deadlines',
    bell = tag .. ':bell:' .. deployment,
    knocks = tag .. ':knocks:' .. deployment,
    waiting = tag .. ':waiting:' .. deployment,
    parked_here = tag .. ':parked-here:' .. deployment,
    places = tag .. ':places:' .. deployment,
    pace = tag .. ':pace:' .. deployment,
    held = function(who) return tag .. ':held:' .. who end,
    own_bell = function(who) return tag .. ':bell:@' .. who end,
    band = function(band) return tag .. ':band:' .. band .. ':' .. deployment end,
    served = function(band) return tag .. ':served:' .. band .. ':' .. deployment end,
    lane = function(band, tenant) return tag .. ':lane:' .. band .. ':' .. tenant .. ':' .. deployment end,
    drafts = function(tenant) return { tag .. ':open-drafts:' .. tenant, tag .. ':drafts-ending:' .. tenant } end,
    slots = function(quota) return tag .. ':slots:' .. quota end,
    parked = function(quota) return tag .. ':parked:' .. quota end,
    of = function(other) return tag .. ':queue:' .. other end,
  }
end

local function ring(k)
  if redis.call('LPUSH', k.bell, '1') > 1024 then redis.call('LTRIM', k.bell, 0, 1023) end
end

-- ---- lanes

local function lane_activate(k, band, tenant)
  local lanes, served = k.band(band), k.served(band)
  if redis.call('ZSCORE', lanes, tenant) then return end
  local f = redis.call('HMGET', served, 'c:' .. tenant, 'last')
  local own, least = tonumber(f[1]) or 0, redis.call('ZRANGE', lanes, 0, 0, 'WITHSCORES')[2]
  if not least and f[2] then least = f[2] == tenant and f[1] or redis.call('HGET', served, 'c:' .. f[2]) end
  own = math.max(own, tonumber(least or 0) or 0)
  if own ~= tonumber(f[1]) then redis.call('HSET', served, 'c:' .. tenant, string.format('%.3f', own)) end
  redis.call('PEXPIRE', served, KEPT)
  redis.call('ZADD', lanes, own, tenant)
end

-- Note what a tenant was served; `tokens` are weighted by kind, not yet by tenant.
local function charge(k, band, tenant, weight, tokens)
  if tokens == 0 then return end
  local counter = redis.call('HINCRBYFLOAT', k.served(band), 'c:' .. tenant, string.format('%.6f', tokens / weight))
  redis.call('ZADD', k.band(band), 'XX', counter, tenant)
end

-- Note that a stream has generated `tokens` in all. `f`: tenant, band, weight, what was charged before.
local function charge_generated(k, f, tokens)
  local more = tokens - (tonumber(f[4]) or 0)
  if more > 0 and f[1] then charge(k, tonumber(f[2]) or 1, f[1], tonumber(f[3]) or 1, OUTPUT_WEIGHT * more) end
end

-- Workers whose places are all taken do not hear the bell. They hear of who comes while nobody of his tenant waits, for whom
-- they may have a spare place.
local function knock(k)
  redis.call('XADD', k.knocks, 'MAXLEN', '~', 64, '*', 'd', '')
  redis.call('PEXPIRE', k.knocks, KEPT)
end

-- Returns the stream's number in its lane, for its record, and where it stands there (1: first).
local function lane_push(k, id, tenant, band)
  local number, index = redis.call('HINCRBY', k.served(band), 'in:' .. tenant, 1), redis.call('RPUSH', k.lane(band, tenant), id)
  if index == 1 then knock(k) end
  redis.call('HINCRBY', k.served(band), 'n', 1)
  lane_activate(k, band, tenant)
  return number, index
end

-- The first stream of a lane, or nil where that has none (any more).
local function lane_take(k, band, tenant)
  local lane, served = k.lane(band, tenant), k.served(band)
  local id = redis.call('LPOP', lane)
  if id then redis.call('HINCRBY', served, 'n', -1) end
  if redis.call('EXISTS', lane) == 1 then
    redis.call('HINCRBY', served, 'out:' .. tenant, 1)
  else
    redis.call('ZREM', k.band(band), tenant)
    redis.call('HDEL', served, 'in:' .. tenant, 'out:' .. tenant)
    redis.call('HSET', served, 'last', tenant)
  end
  return id
end

-- Put a stream that was taken back to the head of its lane, which stands where it stood.
local function lane_return(k, record, id, tenant, band)
  local lane, served = k.lane(band, tenant), k.served(band)
  if redis.call('EXISTS', lane) == 0 then
    local number = redis.call('HGET', record, 'lane_no')
    redis.call('HSET', served, 'in:' .. tenant, number, 'out:' .. tenant, number)
  end
  redis.call('LPUSH', lane, id)
  redis.call('HINCRBY', served, 'out:' .. tenant, -1)
  redis.call('HINCRBY', served, 'n', 1)
  redis.call('ZADD', k.band(band), 'NX', tonumber(redis.call('HGET', served, 'c:' .. tenant)) or 0, tenant)
end

local function lane_pop(k, band)
  while true do
    local tenant = redis.call('ZRANGE', k.band(band), 0, 0)[1]
    if not tenant then return nil end
    local id = lane_take(k, band, tenant)
    if id then return id end
  end
end

-- The next stream, or nil.
local function next_waiting(k)
  local id = redis.call('LPOP', k.queue)
  if id then return id end
  local turn = redis.call('HINCRBY', k.pace, 'turn', 1)
  local first = 0
  while first < BANDS - 1 and turn % AGING ^ (first + 1) == 0 do first = first + 1 end
  for i = 0, BANDS - 1 do
    id = lane_pop(k, (first + i) % BANDS)
    if id then return id end
  end
  redis.call('HINCRBY', k.pace, 'turn', -1)
  return nil
end

-- The next stream for a spare place of a worker, or nil: of a tenant that has none running there, or less than its equal part
-- (`running`: tenant -> how many), and that is the least served of those that wait in the highest band, but for what those that
-- run may have been served since it was counted.
local function next_for_spare(k, running)
  for band = 0, BANDS - 1 do
    local lanes = redis.call('ZRANGE', k.band(band), 0, SPARE_LOOKS - 1, 'WITHSCORES')
    local all, tenants = 0, 0
    for _, count in pairs(running) do all, tenants = all + count, tenants + 1 end
    for i = 1, #lanes, 2 do
      if not running[lanes[i]] then tenants = tenants + 1 end
    end
    local mean = tonumber(redis.call('HGET', k.served(band), 'mean')) or 0
    local most = lanes[1] and tonumber(lanes[2]) + mean * math.max(1, all)
    for i = 1, #lanes, 2 do
      if tonumber(lanes[i + 1]) > most then break end
      local own = running[lanes[i]] or 0
      local id = (own == 0 or (own + 1) * tenants <= all) and lane_take(k, band, lanes[i])
      if id then return id end
    end
    if lanes[1] then return nil end
  end
  return nil
end

-- ---- slots of parallel requests

-- Put a parked stream back where it came from, at the head.
local function unpark(record_prefix, k0, id)
  local record = record_prefix .. id
  local f = redis.call('HMGET', record, 'state', 'deployment', 'epoch', 'tenant', 'band', 'parked')
  if f[1] ~= 'queued' or not f[6] then return false end
  redis.call('HDEL', record, 'parked')
  local k = fair_keys(k0.of(f[2]))
  redis.call('SREM', k.parked_here, id)
  if f[3] ~= '0' then
    redis.call('LPUSH', k.queue, id)
  else
    local band = tonumber(f[5]) or 1
    redis.call('LPUSH', k.lane(band, f[4]), id)
    redis.call('HINCRBY', k.served(band), 'out:' .. f[4], -1)
    redis.call('HINCRBY', k.served(band), 'n', 1)
    lane_activate(k, band, f[4])
  end
  ring(k)
  return true
end

-- A slot of a quota may be free: let the one go that has waited for it longest.
local function slots_pass_on(record_prefix, k, quota)
  while true do
    local id = redis.call('LPOP', k.parked(quota))
    if not id or unpark(record_prefix, k, id) then return end
  end
end

-- Give back slots that a stream holds: what its record's `slots` says, which the caller takes out.
local function slots_give_back(record_prefix, k, id, held)
  for _, cap in ipairs(cmsgpack.unpack(held)) do
    redis.call('SREM', k.slots(cap[1]), id)
    slots_pass_on(record_prefix, k, cap[1])
  end
end

-- Give back the slots that a stream holds.
local function slots_release(record_prefix, k, id)
  local record = record_prefix .. id
  local held = redis.call('HGET', record, 'slots')
  if not held then return end
  redis.call('HDEL', record, 'slots')
  slots_give_back(record_prefix, k, id, held)
end

-- A stream that might have been next for its slots does not take them: others may.
local function slots_decline(record_prefix, k, caps, except)
  for _, cap in ipairs(caps) do
    if cap[1] ~= except and redis.call('SCARD', k.slots(cap[1])) < cap[2] then slots_pass_on(record_prefix, k, cap[1]) end
  end
end

-- Take a slot of every quota that has them, or park the stream with the first that is used up. Returns whether it may run;
-- its record's `slots` then has to say `packed`.
local function slots_take(record_prefix, k, id, packed, was_served)
  if not packed then return true end
  local caps, record = cmsgpack.unpack(packed), record_prefix .. id
  for _, cap in ipairs(caps) do
    if redis.call('SCARD', k.slots(cap[1])) >= cap[2] then
      redis.call('HSET', record, 'parked', cap[1])
      redis.call('HDEL', record, 'alone')
      redis.call('SADD', k.parked_here, id)
      redis.call(was_served and 'LPUSH' or 'RPUSH', k.parked(cap[1]), id)
      slots_decline(record_prefix, k, caps, cap[1])
      return false
    end
  end
  for _, cap in ipairs(caps) do redis.call('SADD', k.slots(cap[1]), id) end
  return true
end

-- ---- in and out

-- Put a stream that was served before back into the queue, ahead of all that were not, and ring for one worker. It waits for
-- as long as it might have waited at first; then the reaper ends it.
local function enqueue_ahead(record_prefix, queue_key, id)
  local k, record = fair_keys(queue_key), record_prefix .. id
  slots_release(record_prefix, k, id)
  local f = redis.call('HMGET', record, 'admitted_ms', 'deadline_ms')
  local until_ms = int(now_ms() + (tonumber(f[2]) or 0) - (tonumber(f[1]) or 0))
  redis.call('HSET', record, 'state', 'queued', 'owner', '', 'wait_until_ms', until_ms)
  redis.call('ZADD', k.deadlines, until_ms, id)
  redis.call('SADD', k.waiting, id)
  redis.call('LPUSH', k.queue, id)
  ring(k)
end

-- Put a new stream into its tenant's lane; the caller rings. Its gateway ends it at its deadline; the reaper a little
-- later, if that gateway is gone. Returns fields for its record, and where it stands in its lane (1: first).
local function enqueue_new(k, id, tenant, band, deadline)
  local until_ms = int(deadline + DEADLINE_GRACE)
  redis.call('ZADD', k.deadlines, until_ms, id)
  redis.call('SADD', k.waiting, id)
  local number, index = lane_push(k, id, tenant, band)
  local fields = { 'state', 'queued', 'owner', '', 'wait_until_ms', until_ms, 'lane_no', number }
  if index == 1 then fields[9], fields[10] = 'alone', '1' end
  return fields, index
end

-- Say whether a queue of `limit` places has none for one more of a tenant's: {how many wait, 1 if it is the tenant who has too
-- many} or nil. Who waits for his own parallel requests is in nobody's way, and has as many places again for each quota.
local function queue_full(k, tenant, caps, limit)
  for _, cap in ipairs(caps) do
    local parked = redis.call('LLEN', k.parked(cap[1]))
    if parked >= limit then return { parked, 1 } end
  end
  local waiting, own = redis.call('SCARD', k.waiting) - redis.call('SCARD', k.parked_here), 0
  if waiting >= limit then return { waiting, 0 } end
  if waiting < SHARE_OF_FREE * (limit - waiting) then return nil end  -- all that wait would not be too many for one
  for band = 0, BANDS - 1 do own = own + redis.call('LLEN', k.lane(band, tenant)) end
  if own >= SHARE_OF_FREE * (limit - waiting) then return { own, 1 } end
  return nil
end

-- Take a waiting stream out of whatever it waits in.
local function withdraw(record_prefix, k, id)
  local record = record_prefix .. id
  local f = redis.call('HMGET', record, 'tenant', 'band', 'parked', 'epoch', 'caps')
  redis.call('SREM', k.waiting, id)
  redis.call('ZREM', k.deadlines, id)
  if f[3] then
    redis.call('LREM', k.parked(f[3]), 1, id)
    redis.call('SREM', k.parked_here, id)
    redis.call('HDEL', record, 'parked')
  elseif redis.call('LREM', k.queue, 1, id) == 0 then
    local band = tonumber(f[2]) or 1
    local lane = k.lane(band, f[1] or '')
    if redis.call('LREM', lane, 1, id) == 1 then redis.call('HINCRBY', k.served(band), 'n', -1) end
    if redis.call('EXISTS', lane) == 0 then
      redis.call('ZREM', k.band(band), f[1] or '')
      redis.call('HDEL', k.served(band), 'in:' .. (f[1] or ''), 'out:' .. (f[1] or ''))
    end
  end
  if f[5] then slots_decline(record_prefix, k, cmsgpack.unpack(f[5]), nil) end
end
