-- Riders: callers of the same static request that are given one running stream, their host. Each has a record of its own,
-- whose `rides` names the host, and is booked for itself when the host ends or when it leaves.

-- How long after its end a stream is still ridden: until its answer is kept.
local RIDE_AFTER_END = 2000
local MOST_RIDERS = 4096

-- HASH rider's stream id -> {reserved, 1 if tokens count, admitted (ms)} (msgpack), by the host's record.
local function riders_of(record_key)
  return (string.gsub(record_key, ':stream:', ':riders:', 1))
end

-- HASH rider's stream id -> when it was given the stream (Unix ms), until its gateway reads it for it.
local function coming_of(record_key)
  return (string.gsub(record_key, ':stream:', ':coming:', 1))
end

-- Book one rider and end its record. `used`: {prompt, completion} of the answer; `owner`: who wrote it, nil for not known.
local function rider_book(record_key, usage_key, soft_limits_key, id, packed, state, finish, used, keep_ms, now, owner)
  local r = cmsgpack.unpack(packed)
  local reserved, counts = cmsgpack.unpack(r[1]), r[2] == 1 and state == 'finished'
  local prompt, completion = counts and used[1] or 0, counts and used[2] or 0
  local cost = quotas_settle(reserved, prompt, prompt, completion, soft_limits_key, now)
  local f, payer = redis.call('HMGET', record_key, 'tenant', 'deployment'), reserved[4]
  redis.call('HSET', record_key, 'state', state, 'ended_ms', int(now))
  redis.call('PEXPIRE', record_key, keep_ms)
  redis.call('XADD', usage_key, '*', 'stream', id, 'tenant', f[1] or '', 'key', payer[1], 'user', payer[2],
    'deployment_id', payer[3], 'adapter', payer[4] or '', 'deployment', f[2] or '', 'state', state, 'finish', finish,
    'prompt', int(prompt), 'cached', int(prompt), 'completion', int(completion), 'cost', int(cost),
    'admitted_ms', int(r[3]), 'ended_ms', int(now), 'source', 'shared', 'owner', owner or '')
end

-- The host has ended: so have its riders.
local function riders_settle(stream_prefix, host_key, usage_key, soft_limits_key, state, finish, used, keep_ms, now, owner)
  local key = riders_of(host_key)
  local riders = redis.call('HGETALL', key)
  for i = 1, #riders, 2 do
    rider_book(stream_prefix .. riders[i], usage_key, soft_limits_key, riders[i], riders[i + 1], state, finish, used, keep_ms, now,
      owner)
  end
  if #riders > 0 then redis.call('DEL', key) end
end

-- Give a caller a running stream; nil where it must have one of its own. `terms`: what it is held to and charged.
local function ride(stream_prefix, bucket_prefix, budget_prefix, usage_key, soft_limits_key, host, caller, now)
  local host_key = stream_prefix .. host
  local f = redis.call('HMGET', host_key, 'state', 'cancel', 'tenant', 'left', 'ended_ms', 'used', 'finish', 'log_ttl_ms',
    'abandoned')
  if not f[1] or f[2] or f[9] or f[3] ~= caller.tenant then return nil end
  local over = TERMINAL[f[1]]
  if over and (f[1] ~= 'finished' or not f[6] or now - tonumber(f[5]) > RIDE_AFTER_END) then return nil end
  local key = riders_of(host_key)
  local count = redis.call('HLEN', key)
  if count >= MOST_RIDERS or (f[4] and count == 0) then return nil end
  local refusal, writes, rates = quotas_check(caller.terms, bucket_prefix, budget_prefix, now)
  if refusal then return { 'refused', refusal[1], refusal[2], int(refusal[3]), rates } end
  local packed = cmsgpack.pack({ quotas_reserve(caller.terms, writes, now), caller.counts, now })
  local record = stream_prefix .. caller.id
  redis.call('HSET', record, 'tenant', caller.tenant, 'deployment', caller.deployment, 'state', 'running', 'epoch', '0',
    'rides', host, 'log_ttl_ms', f[8] or '0')
  redis.call('PEXPIRE', record, caller.ttl_ms)
  if over then
    rider_book(record, usage_key, soft_limits_key, caller.id, packed, f[1], f[7] or 'stop', cmsgpack.unpack(f[6]), caller.ttl_ms, now)
  else
    redis.call('HSET', key, caller.id, packed)
    redis.call('PEXPIRE', key, caller.ttl_ms)
    redis.call('HSET', coming_of(host_key), caller.id, int(now))
    redis.call('PEXPIRE', coming_of(host_key), 60000)
  end
  return { 'rides', host, rates }
end
