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

-- Give a stream to `owner` under a new epoch and note it in the owner's assignment table. More fields of the record that
-- change with it come behind, each with its value: one HSET costs less than two.
local function take(record_key, assigned_key, stream_id, owner, previous_epoch, now, ...)
  local epoch = int(next_epoch(previous_epoch, now))
  redis.call('HSET', record_key, 'owner', owner, 'epoch', epoch, 'claimed_ms', int(now), ...)
  redis.call('HSET', assigned_key, stream_id, epoch .. ':' .. int(now))
  return epoch
end

-- msgpack array header for n elements.
local function array_header(n)
  return string.char(0xdd, math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256)
end

-- Who reads a stream stands in one string, gateway incarnations with a space between them: nearly always it is one, and all
-- streams of an engine step are asked for theirs by one MGET. A set for each would cost as much as the log entry itself.

-- Return the readers without a gateway, and whether it was among them.
local function readers_without(readers, gateway)
  local left, was_there = {}, false
  for each in string.gmatch(readers or '', '%S+') do
    if each == gateway then was_there = true else left[#left + 1] = each end
  end
  return table.concat(left, ' '), was_there
end

-- One MGET asks for so many keys: Lua passes some 8,000 arguments at most.
local MOST_KEYS = 1000

-- Hand payloads to the gateways that read their streams. readers_keys and payloads: the same length, a key for each payload.
-- One entry for all streams that the same gateways read, ids 1-0, 1-1, ... without gaps, so that a reader sees when it was
-- trimmed. A gateway that is gone has no delivery stream (NOMKSTREAM) and costs nothing.
local function deliver(delivery_prefix, max_length, readers_keys, payloads)
  local by_readers = {}
  for first = 1, #readers_keys, MOST_KEYS do
    local last = math.min(first + MOST_KEYS - 1, #readers_keys)
    local found = redis.call('MGET', unpack(readers_keys, first, last))
    for i = first, last do
      local readers = found[i - first + 1]
      if readers then
        local theirs = by_readers[readers]
        if theirs then theirs[#theirs + 1] = payloads[i] else by_readers[readers] = { payloads[i] } end
      end
    end
  end
  for readers, theirs in pairs(by_readers) do
    local entry = array_header(#theirs) .. table.concat(theirs)
    for gateway in string.gmatch(readers, '%S+') do
      redis.call('XADD', delivery_prefix .. gateway, 'NOMKSTREAM', 'MAXLEN', '~', max_length, '1-*', 'd', entry)
    end
  end
end
