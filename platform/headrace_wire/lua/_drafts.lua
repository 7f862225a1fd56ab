-- Drafts of a tenant that were computed and whose prompt was not sent yet: gateways share them, so that a prompt counts as a hit
-- whichever of them it is sent through. `k`: {open drafts (HASH), when they end (ZSET)}. A draft's name is the hash of the prefix
-- that was computed (`prefix_hashes`) and its prefill's id; the HASH has a prefix' ids, each with a space behind it.

local DRAFT_HASH_BYTES = 8
-- Blocks, from a prompt's end, with which a draft that it goes on from may end.
local DRAFT_BLOCKS = 256

-- Take a draft out; false where it was not there any more: its prompt was sent.
local function draft_close(k, name)
  if redis.call('ZREM', k[2], name) == 0 then return false end
  local prefix, id = string.sub(name, 1, DRAFT_HASH_BYTES), string.sub(name, DRAFT_HASH_BYTES + 1) .. ' '
  local ids = redis.call('HGET', k[1], prefix) or ''
  local from, to = string.find(ids, id, 1, true)
  local rest = from and string.sub(ids, 1, from - 1) .. string.sub(ids, to + 1) or ids
  if rest == '' then redis.call('HDEL', k[1], prefix) else redis.call('HSET', k[1], prefix, rest) end
  return true
end

-- Take those out whose gateway has died.
local function drafts_sweep(k, now)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', k[2], '-inf', int(now), 'LIMIT', 0, 64)) do draft_close(k, name) end
end

local function draft_open(k, name, now, life)
  drafts_sweep(k, now)
  local prefix = string.sub(name, 1, DRAFT_HASH_BYTES)
  local ids = redis.call('HGET', k[1], prefix) or ''
  redis.call('HSET', k[1], prefix, ids .. string.sub(name, DRAFT_HASH_BYTES + 1) .. ' ')
  redis.call('ZADD', k[2], int(now + life), name)
  redis.call('PEXPIRE', k[1], int(life))
  redis.call('PEXPIRE', k[2], int(life))
end

-- A prompt is sent. `what` is '=' and the name of the draft that it goes on from, or '?' and the hashes of the prompt's blocks: of
-- the drafts that it begins with, the longest is taken. Returns the name of the one that was still there, else ''.
local function draft_claim(k, what, now)
  if redis.call('EXISTS', k[1]) == 0 then return '' end
  if string.sub(what, 1, 1) == '=' then
    local name = string.sub(what, 2)
    return draft_close(k, name) and name or ''
  end
  drafts_sweep(k, now)
  local hashes = {}
  for at = #what - DRAFT_HASH_BYTES + 1, 2, -DRAFT_HASH_BYTES do
    hashes[#hashes + 1] = string.sub(what, at, at + DRAFT_HASH_BYTES - 1)
    if #hashes == DRAFT_BLOCKS then break end
  end
  for i, ids in ipairs(redis.call('HMGET', k[1], unpack(hashes))) do
    if ids then
      local name = hashes[i] .. string.match(ids, '^(%S+) ')
      draft_close(k, name)
      return name
    end
  end
  return ''
end
