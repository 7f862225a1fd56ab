-- recall: give a kept answer and book it to its caller, all or nothing.
-- KEYS  1 entry · 2 when the tenant's entries were used last · 3 bucket prefix · 4 budget prefix · 5 usage events
--       6 soft limits that were passed
-- ARGV  1 the entry's name · 2 stream id · 3 tenant id · 4 deployment · 5 greatest age (ms) · 6 AdmissionTerms (msgpack; its
--       tokens are those of the entry) · 7 1 if tokens count
-- Returns {'none'} · {'refused', kind, quota id, retry after (ms, -1: never), rates} · {'kept', age (ms), body, rates}
define('recall', function(keys, args)
  local entry = redis.call('GET', keys[1])
  if not entry then return { 'none' } end
  local now = now_ms()
  local created, prompt, completion, finish, from = string.match(entry, '^(%d+):(%d+):(%d+):([%a_]+):()')
  local age = created and math.max(0, now - tonumber(created))
  if not age or age > tonumber(args[5]) then return { 'none' } end
  local terms = cmsgpack.unpack(args[6])
  local counts = args[7] == '1'
  prompt, completion = counts and tonumber(prompt) or 0, counts and tonumber(completion) or 0
  terms[1], terms[2] = prompt, completion
  local refusal, writes, rates = quotas_check(terms, keys[3], keys[4], now)
  if refusal then return { 'refused', refusal[1], refusal[2], int(refusal[3]), rates } end
  local reserved = cmsgpack.unpack(quotas_reserve(terms, writes, now))
  local cost = quotas_settle(reserved, prompt, prompt, completion, keys[6], now)
  local payer = terms[4]
  redis.call('ZADD', keys[2], 'XX', int(now), args[1])
  redis.call('XADD', keys[5], '*', 'stream', args[2], 'tenant', args[3], 'key', payer[1], 'user', payer[2],
    'deployment_id', payer[3], 'adapter', payer[4] or '', 'deployment', args[4], 'state', 'finished', 'finish', finish,
    'prompt', int(prompt), 'cached', int(prompt), 'completion', int(completion), 'cost', int(cost),
    'admitted_ms', int(now), 'ended_ms', int(now), 'source', 'cache')
  return { 'kept', int(age), string.sub(entry, from), rates }
end)
