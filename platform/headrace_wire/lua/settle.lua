-- settle: end a stream exactly once, by its owner. Called after the terminal log entry was accepted, before it is published.
-- What was reserved and not used goes back, and the ledger gets its event, in the same step.
-- KEYS  1 stream record · 2 the owner's assignment table · 3 usage events · 4 soft limits that were passed
--       5 queue prefix · 6 stream record prefix · 7 finished streams whose answer is to be kept
-- It stays in the owner's table until a later renew: an owner that dies before it has published leaves it to the reaper.
-- ARGV  1 stream id · 2 epoch · 3 terminal state · 4 how long the record outlives the stream (ms) · 5 finish reason
--       6 prompt tokens · 7 those from the prefix cache · 8 completion tokens
-- Returns 1, or 0 when the caller is not the owner or the stream has ended already (nothing is changed).
local KEPT_AT_END = {
  [4] = 'tenant', [5] = 'deployment', [6] = 'admitted_ms', [11] = 'keep', [14] = 'log_ttl_ms', [15] = 'credit', [16] = 'window',
  [17] = 'reason', [18] = 'attempts', [19] = 'left',
}

define('settle', function(keys, args)
  local f = redis.call('HMGET', keys[1], 'epoch', 'state', 'reserved', 'tenant', 'deployment', 'admitted_ms', 'band', 'weight',
    'charged', 'owner', 'keep', 'flight', 'slots', 'log_ttl_ms', 'credit', 'window', 'reason', 'attempts', 'left')
  if f[1] ~= args[2] or TERMINAL[f[2]] then return 0 end
  local now = now_ms()
  local prompt, cached, completion = tonumber(args[6]), tonumber(args[7]), tonumber(args[8])
  local payer, cost = { '', '', '' }, 0
  if f[3] then
    local reserved = cmsgpack.unpack(f[3])
    payer = reserved[4]
    cost = quotas_settle(reserved, prompt, cached, completion, keys[4], now)
  end
  if f[5] then
    local k, band = fair_keys(keys[5] .. f[5]), tonumber(f[7]) or 1
    if f[13] then slots_give_back(keys[6], k, args[1], f[13]) end
    if f[10] and redis.call('HEXISTS', k.pace, 'running:' .. f[10]) == 1 then
      redis.call('HINCRBY', k.pace, 'running:' .. f[10], -1)
    end
    charge_generated(k, { f[4], f[7], f[8], f[9] }, completion)
    if completion > 0 then mean_note(k, band, (INPUT_WEIGHT * prompt + OUTPUT_WEIGHT * completion) / (tonumber(f[8]) or 1)) end
  end
  redis.call('HSET', keys[2], args[1], f[1] .. ':' .. int(now))
  -- What is asked of a stream that has ended, and no more. A hash that has held a request stays a table, of 1.1 KB for a day;
  -- made anew it is one small block.
  local left = { 'epoch', f[1], 'state', args[3], 'ended_ms', int(now) }
  for i, name in pairs(KEPT_AT_END) do
    if f[i] then left[#left + 1], left[#left + 2] = name, f[i] end
  end
  if f[11] and args[3] == 'finished' then
    local n = #left
    left[n + 1], left[n + 2], left[n + 3], left[n + 4] = 'used', cmsgpack.pack({ prompt, completion }), 'finish', args[5]
  end
  redis.call('DEL', keys[1])
  redis.call('HSET', keys[1], unpack(left))
  redis.call('PEXPIRE', keys[1], args[4])
  if f[11] then
    riders_settle(keys[6], keys[1], keys[3], keys[4], args[3], args[5], { prompt, completion }, args[4], now, f[10])
    if args[3] == 'finished' then
      redis.call('RPUSH', keys[7], args[1])
      redis.call('LTRIM', keys[7], -4096, -1)
      redis.call('PEXPIRE', keys[7], 60000)
    elseif f[12] and redis.call('GET', f[12]) == args[1] then
      redis.call('DEL', f[12])
    end
  end
  redis.call('XADD', keys[3], '*', 'stream', args[1], 'tenant', f[4] or '', 'key', payer[1], 'user', payer[2],
    'deployment_id', payer[3], 'adapter', payer[4] or '', 'deployment', f[5] or '', 'state', args[3], 'finish', args[5],
    'prompt', int(prompt), 'cached', int(cached), 'completion', int(completion), 'cost', int(cost),
    'admitted_ms', f[6] or '0', 'ended_ms', int(now), 'owner', f[10] or '')
  return 1
end)
