-- Which worker has computed which prompts' beginnings, and for whom a waiting stream is left for a moment.
--
-- Each worker has a set of hashes of the prefixes that its engine's cache holds, chained (`prefix_hashes`): whoever holds one
-- holds those before it, too. The set is noted at a claim, set right by the worker's reports, and ends with its lease. A worker
-- that has more to do than others is not preferred, so that a popular prefix comes to be held by several. Where one worker
-- serves a deployment nothing of this is looked at. Keys: `redis_keys`, Prefix affinity.

local PREFIX_BYTES = 8
-- Blocks by which a worker must be ahead, for a stream to be left to it.
local WORTH_BLOCKS = 2
-- Hashes that are noted of one worker; of what is beyond, it only reports.
local HELD_MOST = 131072
local HELD_MS = 10000
-- A worker is overloaded when it has more than so many times the mean, and so many streams more, of what runs or of what was
-- claimed lately.
local OVER_MEAN, RUNNING_SLACK, LATELY_SLACK = 1.2, 2, 4
local LATELY_MS = 15000
-- Streams that one claim leaves to others before it stops looking.
local MOST_LEFT = 16

local function lately_of(stored, now)
  if not stored then return 0 end
  local count, at = string.match(stored, '^(%S+) (%d+)$')
  return tonumber(count) * math.exp((tonumber(at) - now) / LATELY_MS)
end

-- The live workers of a deployment: list of {who, places, running, lately}.
local function crew(k, now)
  local rows, names, fields = redis.call('ZRANGEBYSCORE', k.places, '(' .. int(now), '+inf'), {}, {}
  for i, row in ipairs(rows) do
    local who, places = string.match(row, '^(.*) (%d+)$')
    names[i] = { who = who, places = tonumber(places) }
    fields[2 * i - 1], fields[2 * i] = 'running:' .. who, 'lately:' .. who
  end
  if not rows[1] then return names end
  local f = redis.call('HMGET', k.pace, unpack(fields))
  for i, worker in ipairs(names) do
    worker.running, worker.lately = tonumber(f[2 * i - 1]) or 0, lately_of(f[2 * i], now)
  end
  return names
end

-- Mark those of a crew that have more to do than the others, or no place.
local function crew_judge(workers)
  local running, lately = 0, 0
  for _, worker in ipairs(workers) do running, lately = running + worker.running, lately + worker.lately end
  running, lately = running / #workers, lately / #workers
  for _, worker in ipairs(workers) do
    worker.is_over = worker.running >= worker.places or worker.running > OVER_MEAN * running + RUNNING_SLACK
      or worker.lately > OVER_MEAN * lately + LATELY_SLACK
  end
end

-- How many leading blocks of a prompt a worker holds.
local function blocks_held(k, who, packed)
  local key, held, beyond = k.held(who), 0, #packed / PREFIX_BYTES + 1
  while beyond - held > 1 do
    local middle = math.floor((held + beyond) / 2)
    if redis.call('SISMEMBER', key, string.sub(packed, (middle - 1) * PREFIX_BYTES + 1, middle * PREFIX_BYTES)) == 1 then
      held = middle
    else
      beyond = middle
    end
  end
  return held
end

-- The worker that holds most of a prompt and is not overloaded, the less busy one of equals, and how much: nil where all hold
-- next to nothing. The third value is how much `me` holds.
local function best_holder(k, workers, packed, me)
  local best, most, own = nil, 0, 0
  crew_judge(workers)
  for _, worker in ipairs(workers) do
    local blocks = (worker.who == me or not worker.is_over) and blocks_held(k, worker.who, packed) or 0
    if worker.who == me then own = blocks end
    if not worker.is_over and (blocks > most or (best and blocks == most and worker.lately < best.lately)) then
      best, most = worker, blocks
    end
  end
  if most < WORTH_BLOCKS then best = nil end
  return best, most, own
end

-- The one of a crew that was judged which has least to do: of what runs, then of what it claimed lately.
local function least_busy(workers)
  local least = nil
  for _, worker in ipairs(workers) do
    local is_less = not least or worker.running < least.running
      or (worker.running == least.running and worker.lately < least.lately)
    if not worker.is_over and is_less then least = worker end
  end
  return least
end

-- Note that a worker begins to compute a prompt.
local function held_note(k, who, packed)
  local key, hashes = k.held(who), {}
  if redis.call('SCARD', key) < HELD_MOST then
    for at = 1, #packed, PREFIX_BYTES do hashes[#hashes + 1] = string.sub(packed, at, at + PREFIX_BYTES - 1) end
    redis.call('SADD', key, unpack(hashes))
  end
  redis.call('PEXPIRE', key, HELD_MS)
end

-- Wake one worker.
local function ring_for(k, who)
  local bell = k.own_bell(who)
  redis.call('LPUSH', bell, '1')
  redis.call('LTRIM', bell, 0, 63)
  redis.call('PEXPIRE', bell, HELD_MS)
end
