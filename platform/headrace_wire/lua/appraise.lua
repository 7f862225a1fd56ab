-- appraise: what admission would say, and what quotas hold now. Changes nothing.
-- KEYS  1 queue · 2 bucket prefix · 3 budget prefix
-- ARGV  1 tenant id · 2 AdmissionTerms (msgpack)
-- Returns {refusal: {} or {kind, quota id, retry after (ms)}, position if it were admitted, how many wait, for each quota of
--       the terms: {requests left, tokens left (of a minute, decimal fractions), tokens used, money used (micros, of the
--       period), running, waiting for a slot}}.
define('appraise', function(keys, args)
  local now, terms, k = now_ms(), cmsgpack.unpack(args[2]), fair_keys(keys[1])
  local refusal = quotas_check(terms, keys[2], keys[3], now)
  local states = {}
  for i, q in ipairs(terms[5]) do
    local bucket = keys[2] .. q[1]
    local period = now < q[9] and q[8] or q[10]
    local used = redis.call('HMGET', keys[3] .. q[1] .. ':' .. period, 'tokens', 'micros')
    states[i] = {
      q[2] == NONE and '0' or tostring(bucket_level(bucket, 'rpm', q[2], now)),
      q[3] == NONE and '0' or tostring(bucket_level(bucket, 'tpm', q[3], now)),
      used[1] or '0', used[2] or '0',
      redis.call('SCARD', k.slots(q[1])), redis.call('LLEN', k.parked(q[1])),
    }
  end
  local index = redis.call('LLEN', k.lane(terms[6], args[1])) + 1
  local position = lane_position(k, terms[6], args[1], index)
  local answer = refusal and { refusal[1], refusal[2], int(refusal[3]) } or {}
  return { answer, position, redis.call('SCARD', k.waiting), states }
end)
