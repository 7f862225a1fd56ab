-- draft: let a tenant have a prefix computed for a prompt that is still being typed. All or nothing.
-- KEYS  1 bucket of tokens · 2 drafts in flight · 3 open drafts · 4 when they end
-- ARGV  1 tokens · 2 tokens per minute · 3 most in flight · 4 prefill id · 5 prefill that it replaces, or '' · 6 its life (ms)
--       7 its name among the open drafts (`_drafts.lua`), or '' where no other gateway need know it · 8 the name of the one that it
--       replaces, or '' · 9 for how long it may be open (ms)
-- Returns {'ok' | 'budget' | 'crowded', retry after (ms), 0 where the prompt of the one that it replaces was sent, else 1}.
define('draft', function(keys, args)
  local now, tokens, limit, id = now_ms(), tonumber(args[1]), tonumber(args[2]), args[4]
  if args[5] ~= '' then redis.call('ZREM', keys[2], args[5]) end
  redis.call('ZREMRANGEBYSCORE', keys[2], '-inf', int(now))
  if redis.call('ZCARD', keys[2]) >= tonumber(args[3]) then
    local first = redis.call('ZRANGE', keys[2], 0, 0, 'WITHSCORES')
    return { 'crowded', int(math.max(1, tonumber(first[2]) - now)), 1 }
  end
  local level = bucket_level(keys[1], 'tokens', limit, now)
  if level < tokens then
    -- What is more than a whole minute gives never fits; a shorter one may.
    return { 'budget', int(math.ceil((math.min(tokens, limit) - level) * MINUTE / limit)), 1 }
  end
  buckets_store(keys[1], { { 'tokens', level - tokens, limit } }, now)
  redis.call('ZADD', keys[2], int(now + tonumber(args[6])), id)
  redis.call('PEXPIRE', keys[2], args[6])
  local open, was_open = { keys[3], keys[4] }, 1
  if args[8] ~= '' and not draft_close(open, args[8]) then was_open = 0 end
  if args[7] ~= '' then draft_open(open, args[7], now, tonumber(args[9])) end
  return { 'ok', '0', was_open }
end)
