-- keep: keep an answer; those that were used longest ago go where there is no room.
-- KEYS  1 entry prefix of the tenant · 2 when its entries were used last · 3 when they end · 4 their sizes
--       5 prefix of questions to compare with · 6 in which partition each is
-- ARGV  1 the entry's name · 2 value without its time · 3 TTL (ms) · 4 bytes that the tenant may have
--       5 partition of its question · 6 the question, packed; '' where it is compared with none
-- Returns {1 if it is kept (0: it is larger than that), bytes kept now, how many went}
define('keep', function(keys, args)
  local now, name = now_ms(), args[1]
  local most = tonumber(args[4])
  kept_drop(keys, name)
  local total = kept_total(keys, now)
  local value = int(now) .. ':' .. args[2]
  local packed = args[6] or ''
  local size, evicted = #value + KEPT_OVERHEAD + (packed ~= '' and #packed + ALIKE_OVERHEAD or 0), 0
  if size > most then return { 0, total, 0 } end
  while total + size > most do
    local oldest = redis.call('ZPOPMIN', keys[2])
    if #oldest == 0 then break end
    total = total - kept_drop(keys, oldest[1])
    evicted = evicted + 1
  end
  local ends = now + tonumber(args[3])
  redis.call('SET', keys[1] .. name, value, 'PX', args[3])
  redis.call('ZADD', keys[2], int(now), name)
  redis.call('ZADD', keys[3], int(ends), name)
  redis.call('HSET', keys[4], name, size)
  total = redis.call('HINCRBY', keys[4], 'total', size)
  if packed ~= '' then
    alike_note(keys, name, args[5], packed)
    total = tonumber(redis.call('HGET', keys[4], 'total'))
  end
  for _, i in ipairs({ 2, 3, 4, 6 }) do redis.call('PEXPIRE', keys[i], 7200000) end
  return { 1, total, evicted }
end)
