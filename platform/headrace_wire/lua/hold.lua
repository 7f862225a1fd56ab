-- hold: a worker says what its engine's prefix cache holds, or has lost.
-- KEYS  1 queue
-- ARGV  1 worker incarnation · 2 lease (ms) · 3 1 if this is the first part of all that it holds, 0 if it is a change · 4 added
--       hashes, packed · 5 removed ones
-- Returns how many are noted of it; -1 where it is the deployment's only worker: nothing is noted then.
define('hold', function(keys, args)
  local k = fair_keys(keys[1])
  local key = k.held(args[1])
  if #redis.call('ZRANGEBYSCORE', k.places, '(' .. int(now_ms()), '+inf', 'LIMIT', 0, 2) < 2 then
    redis.call('DEL', key)
    return -1
  end
  if args[3] == '1' then redis.call('DEL', key) end
  for i, command in ipairs({ 'SADD', 'SREM' }) do
    local hashes, packed = {}, args[3 + i]
    for at = 1, #packed, PREFIX_BYTES do hashes[#hashes + 1] = string.sub(packed, at, at + PREFIX_BYTES - 1) end
    if hashes[1] then redis.call(command, key, unpack(hashes)) end
  end
  redis.call('PEXPIRE', key, args[2])
  return redis.call('SCARD', key)
end)
