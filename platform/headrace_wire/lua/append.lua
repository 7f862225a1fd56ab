-- append: one engine step's worth of log entries, each accepted or refused on its own, then delivered.
-- KEYS  1 log prefix · 2 token id prefix · 3 readers prefix · 4 delivery prefix (all of one shard)
-- ARGV  1 delivery length limit (entries), then six per entry: stream id · entry id `<epoch>-<seq>` · LogEntry (msgpack) ·
--       offset of its token ids (bytes) · token ids (little-endian uint32) · TTL (ms) from now on if it is terminal, else 0
-- A terminal entry is logged and not delivered: its stream is settled first, then `publish` delivers it.
-- Returns one integer per entry: 1 accepted; 0 the log is gone; -1 an id as high or higher is there already (ours, when an
--       answer got lost, or a successor's: read the tail).
define('append', function(keys, args)
  local results, by_gateway = {}, {}
  for i = 2, #args, 6 do
    local id, payload, ttl = args[i], args[i + 2], args[i + 5]
    local log = keys[1] .. id
    local added = redis.pcall('XADD', log, 'NOMKSTREAM', args[i + 1], 'd', payload)
    if type(added) == 'table' and added.err then
      if not string.find(added.err, 'equal or smaller', 1, true) then return added end
      results[#results + 1] = -1
    elseif not added then
      results[#results + 1] = 0
    else
      results[#results + 1] = 1
      local ids_key = keys[2] .. id
      if args[i + 4] ~= '' then
        redis.call('SETRANGE', ids_key, args[i + 3], args[i + 4])
        if args[i + 3] == '0' then redis.call('PEXPIRE', ids_key, redis.call('PTTL', log)) end
      end
      if ttl == '0' then
        collect(by_gateway, keys[3] .. id, payload)
      else
        redis.call('PEXPIRE', log, ttl)
        redis.call('PEXPIRE', ids_key, ttl)
        redis.call('PEXPIRE', keys[3] .. id, ttl)
      end
    end
  end
  deliver(keys[4], args[1], by_gateway)
  return results
end)
