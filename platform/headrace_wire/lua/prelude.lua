-- Shared by all functions of the library. `@VERSION@` is replaced by a hash of all sources, so that two releases of
-- Headrace run side by side on one Redis: each calls its own functions.

local function define(name, callback)
  redis.register_function(name .. '_@VERSION@', callback)
end

-- Redis time in milliseconds.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Integers leave Lua as text without exponent.
local function int(n)
  return string.format('%.0f', n)
end

-- A new owner's epoch: greater than any before it, and close to the clock, so that ids stay unused even when a restarted
-- Redis has lost its last second.
local function next_epoch(previous, now)
  return math.max((tonumber(previous) or 0) + 1, now)
end

local TERMINAL = { finished = true, failed = true, cancelled = true, replaced = true }

-- States in which a stream has an owner who works on it.
local OWNED = { running = true, held = true }

-- Give a stream to `owner` under a new epoch and note it in the owner's assignment table.
local function take(record_key, assigned_key, stream_id, owner, previous_epoch, now)
  local epoch = int(next_epoch(previous_epoch, now))
  redis.call('HSET', record_key, 'owner', owner, 'epoch', epoch, 'claimed_ms', int(now))
  redis.call('HSET', assigned_key, stream_id, epoch .. ':' .. int(now))
  return epoch
end

-- msgpack array header for n elements.
local function array_header(n)
  return string.char(0xdd, math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256)
end

-- Hand payloads to the gateways that read the streams: one entry per gateway, ids 1-0, 1-1, ... without gaps, so that a
-- reader sees when it was trimmed. A gateway that is gone has no delivery stream (NOMKSTREAM) and costs nothing.
-- by_gateway: gateway -> list of payloads.
local function deliver(delivery_prefix, max_length, by_gateway)
  for gateway, payloads in pairs(by_gateway) do
    redis.call('XADD', delivery_prefix .. gateway, 'NOMKSTREAM', 'MAXLEN', '~', max_length, '1-*',
      'd', array_header(#payloads) .. table.concat(payloads))
  end
end

local function collect(by_gateway, readers_key, payload)
  for _, gateway in ipairs(redis.call('SMEMBERS', readers_key)) do
    local payloads = by_gateway[gateway]
    if not payloads then
      payloads = {}
      by_gateway[gateway] = payloads
    end
    payloads[#payloads + 1] = payload
  end
end
