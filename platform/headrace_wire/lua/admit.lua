-- admit: decide over one stream, all or nothing. Idempotent by stream id.
-- KEYS  1 stream record · 2 queue · 3 bell · 4 bucket prefix · 5 budget prefix · 6 idempotency key of the caller (optional)
-- ARGV  1 stream id · 2 tenant id · 3 deployment · 4 request (msgpack) · 5 queue limit (streams) · 6 queue deadline (ms from now)
--       7 record TTL while alive (ms) · 8 log TTL after the end (ms) · 9 token credit to start with (0: no limit)
--       10 AdmissionTerms (msgpack) · 11 value of the idempotency key · 12 its TTL (ms)
-- Returns {verdict, ...}, and nothing was changed unless it is 'queued':
--       'queued', position (counts from 1), rates · 'full', the queue's length · 'known' (a repeated call) ·
--       'duplicate', the idempotency key's value when another stream has that key ·
--       'refused', kind, quota id, retry after (ms, -1: never), rates.
--       rates: {limit, remaining, reset (ms)} of requests and of tokens per minute, the tightest of each, -1 where none.
define('admit', function(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then return { 'known' } end
  local other = keys[6] and redis.call('GET', keys[6])
  if other then return { 'duplicate', other } end
  local length = redis.call('LLEN', keys[2])
  if length >= tonumber(args[5]) then return { 'full', length } end
  local now = now_ms()
  local terms = cmsgpack.unpack(args[10])
  local refusal, writes, rates = quotas_check(terms, keys[4], keys[5], now)
  if refusal then return { 'refused', refusal[1], refusal[2], int(refusal[3]), rates } end

  if keys[6] then redis.call('SET', keys[6], args[11], 'PX', args[12]) end
  redis.call('HSET', keys[1], 'tenant', args[2], 'deployment', args[3], 'request', args[4], 'epoch', '0',
    'admitted_ms', int(now), 'deadline_ms', int(now + tonumber(args[6])), 'attempts', '0', 'log_ttl_ms', args[8], 'credit', args[9],
    'reserved', quotas_reserve(terms, writes, now))
  redis.call('PEXPIRE', keys[1], args[7])
  return { 'queued', enqueue(keys[1], keys[2], keys[3], args[1], false), rates }
end)
