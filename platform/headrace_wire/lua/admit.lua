-- admit: decide over one stream, all or nothing. Idempotent by stream id.
-- KEYS  1 stream record prefix · 2 queue · 3 bucket prefix · 4 budget prefix · 5 idempotency key of the caller (optional)
-- ARGV  1 stream id · 2 tenant id · 3 deployment · 4 request (msgpack) · 5 queue limit (streams) · 6 queue deadline (ms from now)
--       7 record TTL while alive (ms) · 8 log TTL after the end (ms) · 9 window, and credit to start with (0: no limit)
--       10 AdmissionTerms (msgpack) · 11 hashes of the prompt's blocks, packed (`prefix_hashes`), or '' · 12 how long it may
--       be left to a worker that holds these (ms) · 13 of which drafts it may be the prompt (`draft_claim`), or '' · 14 value of the
--       idempotency key · 15 its TTL (ms)
--       Of a static request the key is that of all callers of the same, and there is more: 16 KeepOrder (msgpack; empty: the
--       answer is not to be kept, nor the stream given to others) · 17 AdmissionTerms of one who is given a running stream
--       (empty: it must have one of its own) · 18 1 if a rider's tokens count. KEYS 6 usage events · 7 soft limits
-- Returns {verdict, ...}, and nothing was changed unless it is 'queued':
--       'queued', position (1: next), rates, pace as `places` gives it, 1 if it may be left to a worker, the draft
--       that it was the first to go on from, or '' · 'full', how many wait, 1 if they are the tenant's own, pace for the next of them · 'known' (a repeated call) ·
--       'duplicate', the idempotency key's value when another stream has that key ·
--       'refused', kind, quota id, retry after (ms, -1: never), rates ·
--       'rides', host, rates: it is given the stream `host`, and has a record that says so.
--       rates: {limit, remaining, reset (ms)} of requests and of tokens per minute, the tightest of each, -1 where none.
define('admit', function(keys, args)
  local record, id, tenant = keys[1] .. args[1], args[1], args[2]
  local known = redis.call('HMGET', record, 'state', 'rides')
  if known[2] then return { 'rides', known[2], rate_reply({ { NONE, 0 }, { NONE, 0 } }) } end
  if known[1] then return { 'known' } end
  local other = keys[5] and redis.call('GET', keys[5])
  if other and not args[16] then return { 'duplicate', other } end
  if other and args[17] ~= '' then
    local ridden = ride(keys[1], keys[3], keys[4], keys[6], keys[7], other, {
      id = id, tenant = tenant, deployment = args[3], terms = cmsgpack.unpack(args[17]), counts = tonumber(args[18]), ttl_ms = args[7],
    }, now_ms())
    if ridden then return ridden end
  end
  local k = fair_keys(keys[2])
  local now, terms, caps = now_ms(), cmsgpack.unpack(args[10]), {}
  for _, q in ipairs(terms[5]) do
    if q[4] ~= NONE then caps[#caps + 1] = { q[1], q[4] } end
  end
  local full = queue_full(k, tenant, caps, tonumber(args[5]))
  if full then return { 'full', full[1], full[2], pace_of(k, terms[6], tenant, 1, 1, 0, nil) } end
  local refusal, writes, rates = quotas_check(terms, keys[3], keys[4], now)
  if refusal then return { 'refused', refusal[1], refusal[2], int(refusal[3]), rates } end

  if keys[5] and args[16] ~= '' then redis.call('SET', keys[5], args[14], 'PX', args[15]) end
  local deadline, band = now + tonumber(args[6]), terms[6]
  local fields, index = enqueue_new(k, id, tenant, band, deadline)
  -- All at once at the end: an HSET costs more than its fields.
  local function note(...)
    for i = 1, select('#', ...) do fields[#fields + 1] = (select(i, ...)) end
  end

  note('tenant', tenant, 'deployment', args[3], 'request', args[4], 'epoch', '0', 'admitted_ms', int(now),
    'deadline_ms', int(deadline), 'attempts', '0', 'log_ttl_ms', args[8], 'credit', args[9], 'window', args[9],
    'reserved', quotas_reserve(terms, writes, now), 'band', band, 'weight', terms[7], 'prompt', terms[1])
  if args[16] and args[16] ~= '' then note('keep', args[16], 'flight', keys[5]) end
  if #caps > 0 then note('caps', cmsgpack.pack(caps)) end
  local prefers, holder = false, nil
  if args[11] ~= '' then
    local workers = crew(k, now)
    prefers = #workers > 1
    if prefers then
      holder = best_holder(k, workers, args[11], '')
      note('prefix', args[11], 'prefer_until', int(now + tonumber(args[12])))
    end
  end
  if holder then
    note('preferred', holder.who)
    ring_for(k, holder.who)
  else
    ring(k)
  end
  local position, _, ahead = lane_position(k, band, tenant, index)
  local pace = pace_of(k, band, tenant, index, position, ahead, index == 1)
  if tonumber(pace[4]) >= PACE_SAMPLES then
    note('expected_ms', pace[1], 'expected_with', math.abs(pace[5]))
  end
  redis.call('HSET', record, unpack(fields))
  redis.call('PEXPIRE', record, args[7])
  local draft = args[13] ~= '' and draft_claim(k.drafts(tenant), args[13], now) or ''
  return { 'queued', position, rates, pace, prefers and 1 or 0, draft }
end)
