-- append: one engine step's worth of log entries, each accepted or refused on its own, then delivered.
-- KEYS  1 log prefix · 2 token id prefix · 3 readers prefix · 4 delivery prefix (all of one shard)
-- ARGV  1 delivery length limit (entries) · 2 the entries, packed one behind the other: an argument each would cost more
--       than what is done with it. Little-endian, lengths before bytes (1 byte, 1 byte, 4 bytes, 4 bytes):
--       stream id · entry id `<epoch>-<seq>` · LogEntry (msgpack) · token ids (uint32 each) · 4 bytes: offset of its token
--       ids (bytes) · 4 bytes: TTL (s) from now on if it is terminal, else 0
-- A terminal entry is logged and not delivered: its stream is settled first, then `publish` delivers it.
-- Returns one integer per entry: 1 accepted; 0 the log is gone; -1 an id as high or higher is there already (ours, when an
--       answer got lost, or a successor's: read the tail).
define('append', function(keys, args)
  local results, readers_keys, payloads = {}, {}, {}
  local log_prefix, ids_prefix, readers_prefix = keys[1], keys[2], keys[3]
  local batch, position = args[2], 1
  while position <= #batch do
    local id, entry_id, payload, token_ids, offset, ttl
    id, entry_id, payload, token_ids, offset, ttl, position = struct.unpack('<I1c0I1c0I4c0I4c0I4I4', batch, position)
    local log = log_prefix .. id
    local added = redis.pcall('XADD', log, 'NOMKSTREAM', entry_id, 'd', payload)
    if type(added) == 'table' and added.err then
      if not string.find(added.err, 'equal or smaller', 1, true) then return added end
      results[#results + 1] = -1
    elseif not added then
      results[#results + 1] = 0
    else
      results[#results + 1] = 1
      local ids_key = ids_prefix .. id
      if token_ids ~= '' then
        redis.call('SETRANGE', ids_key, offset, token_ids)
        if offset == 0 then redis.call('PEXPIRE', ids_key, redis.call('PTTL', log)) end
      end
      if ttl == 0 then
        readers_keys[#readers_keys + 1] = readers_prefix .. id
        payloads[#payloads + 1] = payload
      else
        redis.call('EXPIRE', log, ttl)
        redis.call('EXPIRE', ids_key, ttl)
        redis.call('EXPIRE', readers_prefix .. id, ttl)
      end
    end
  end
  deliver(keys[4], args[1], readers_keys, payloads)
  return results
end)
