-- Quotas, as `admit` checks and `settle` trues them up. A quota is an array, see `admission.QuotaTerms`:
-- 1 id · 2 requests per minute · 3 tokens per minute · 4 parallel requests · 5 tokens per period · 6 money per period (micros)
-- 7 money that is announced (micros) · 8 period · 9 its end (ms) · 10 the period after it · 11 its end (ms); -1: no such limit.

local MINUTE = 60000
local NONE = -1
local BUDGET_KEPT = 40 * 86400000

-- What a bucket holds now: it fills by `limit` a minute, up to `limit`.
local function level_now(stored, since, limit, now)
  if not stored then return limit end
  return math.min(limit, tonumber(stored) + math.max(0, now - tonumber(since)) * limit / MINUTE)
end

local function bucket_level(key, name, limit, now)
  local f = redis.call('HMGET', key, name, name .. '_ms')
  return level_now(f[1], f[2], limit, now)
end

-- Store buckets of one key, each {name, level, limit}.
local function buckets_store(key, buckets, now)
  local fields, full_at = {}, 0
  for _, b in ipairs(buckets) do
    local name, level, limit, n = b[1], b[2], b[3], #fields
    fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = name, string.format('%.6f', level), name .. '_ms', int(now)
    full_at = math.max(full_at, now + MINUTE + math.max(0, limit - level) * MINUTE / limit)
  end
  redis.call('HSET', key, unpack(fields))
  -- Full again by `full_at`, which is what a missing bucket is; a minute more, so that this is not written with each request.
  if redis.call('PEXPIRETIME', key) < full_at then redis.call('PEXPIREAT', key, int(full_at + MINUTE)) end
end

-- Money in micros: tokens times their price per million.
local function cost_micros(prices, prompt, cached, completion)
  return math.ceil(((prompt - cached) * prices[1] + cached * prices[2] + completion * prices[3]) / 1000000)
end

-- The tightest of several limits of one kind, as the x-ratelimit headers tell it.
local function tighter(seen, limit, level)
  if seen[1] ~= NONE and seen[2] * limit <= level * seen[1] then return seen end
  return { limit, level }
end

local function rate_reply(rates)
  local reply = {}
  for i, rate in ipairs(rates) do
    local limit, level = rate[1], rate[2]
    reply[i * 3 - 2] = limit
    reply[i * 3 - 1] = limit == NONE and NONE or math.max(0, math.floor(level))
    reply[i * 3] = limit == NONE and NONE or math.ceil((limit - level) * MINUTE / limit)
  end
  return reply
end

-- Look at every quota of an admission; nothing is written. `terms`: `admission.AdmissionTerms`.
-- Returns refusal {kind, quota id, retry after (ms)} or nil, the writes of an acceptance, and the rates.
local function quotas_check(terms, bucket_prefix, budget_prefix, now)
  local tokens, prices = terms[1] + terms[2], terms[3]
  local micros = cost_micros(prices, terms[1], 0, terms[2])
  local refusal, writes = nil, { tokens = tokens, micros = micros, buckets = {}, budgets = {} }
  local requests_rate, tokens_rate = { NONE, 0 }, { NONE, 0 }
  local RANK = { rpm = 1, tpm = 1, tokens = 2, money = 2, too_large = 3 }

  local function refuse(kind, quota, retry)
    local worse = not refusal or RANK[kind] > RANK[refusal[1]]
    if worse or (RANK[kind] == RANK[refusal[1]] and retry > refusal[3]) then refusal = { kind, quota, retry } end
  end

  local function bucket(found, quota, name, limit, stored, since, cost)
    if limit == NONE then return nil end
    local level = level_now(stored, since, limit, now)
    if cost > limit then
      refuse('too_large', quota, NONE)
    elseif level < cost then
      refuse(name, quota, math.ceil((cost - level) * MINUTE / limit))
    end
    found[#found + 1] = { name, level - cost, limit }
    return level
  end

  for _, q in ipairs(terms[5]) do
    if q[2] ~= NONE or q[3] ~= NONE then
      local key, found = bucket_prefix .. q[1], {}
      local f = redis.call('HMGET', key, 'rpm', 'rpm_ms', 'tpm', 'tpm_ms')
      local requests = bucket(found, q[1], 'rpm', q[2], f[1], f[2], 1)
      local tokens_left = bucket(found, q[1], 'tpm', q[3], f[3], f[4], tokens)
      if requests then requests_rate = tighter(requests_rate, q[2], requests) end
      if tokens_left then tokens_rate = tighter(tokens_rate, q[3], tokens_left) end
      writes.buckets[#writes.buckets + 1] = { key, found, q[3] }
    end
    if q[5] ~= NONE or q[6] ~= NONE or q[7] ~= NONE then
      local current = now < q[9]
      local period, ends = current and q[8] or q[10], current and q[9] or q[11]
      local key = budget_prefix .. q[1] .. ':' .. period
      local used = redis.call('HMGET', key, 'tokens', 'micros')
      if q[5] ~= NONE and (tonumber(used[1]) or 0) + tokens > q[5] then refuse('tokens', q[1], ends - now) end
      if q[6] ~= NONE and (tonumber(used[2]) or 0) + micros > q[6] then refuse('money', q[1], ends - now) end
      writes.budgets[#writes.budgets + 1] = { key, ends, q[1], period, q[7] }
    end
  end
  if not refusal then
    if requests_rate[1] ~= NONE then requests_rate[2] = requests_rate[2] - 1 end
    if tokens_rate[1] ~= NONE then tokens_rate[2] = tokens_rate[2] - tokens end
  end
  return refusal, writes, rate_reply({ requests_rate, tokens_rate })
end

-- Reserve what `quotas_check` has found to fit. Returns what settlement needs to know (msgpack).
local function quotas_reserve(terms, writes, now)
  local budgets, buckets = {}, {}
  for _, b in ipairs(writes.budgets) do
    local is_first = redis.call('HINCRBY', b[1], 'tokens', writes.tokens) == writes.tokens
    redis.call('HINCRBY', b[1], 'micros', writes.micros)
    if is_first then redis.call('PEXPIREAT', b[1], int(b[2] + BUDGET_KEPT)) end
    budgets[#budgets + 1] = { b[1], b[3], b[4], b[5] }
  end
  for _, b in ipairs(writes.buckets) do
    buckets_store(b[1], b[2], now)
    if b[3] ~= NONE then buckets[#buckets + 1] = { b[1], b[3] } end
  end
  return cmsgpack.pack({ writes.tokens, writes.micros, terms[3], terms[4], buckets, budgets })
end

-- Give back what was reserved and not used, to the buckets and periods that it was taken from. Returns the cost (micros).
local function quotas_settle(reserved, prompt, cached, completion, soft_limits_key, now)
  local tokens, micros, prices, buckets, budgets = reserved[1], reserved[2], reserved[3], reserved[5], reserved[6]
  local used, cost = prompt + completion, cost_micros(prices, prompt, cached, completion)
  for _, b in ipairs(buckets) do
    local level = bucket_level(b[1], 'tpm', b[2], now)
    buckets_store(b[1], { { 'tpm', math.min(b[2], level + tokens - used), b[2] } }, now)
  end
  for _, b in ipairs(budgets) do
    local key, soft = b[1], b[4]
    local is_new = redis.call('HINCRBY', key, 'tokens', used - tokens) == used - tokens
    local spent = redis.call('HINCRBY', key, 'micros', cost - micros)
    if is_new and redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, BUDGET_KEPT) end
    if soft ~= NONE and spent > soft and redis.call('HSETNX', key, 'told', 1) == 1 then
      redis.call('XADD', soft_limits_key, '*', 'quota', b[2], 'period', b[3], 'micros', spent, 'limit', soft)
    end
  end
  return cost
end
