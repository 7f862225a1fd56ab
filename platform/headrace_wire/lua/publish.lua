-- publish: deliver entries that were appended before (terminal ones, after their stream was settled).
-- KEYS  1 readers prefix · 2 delivery prefix (of one shard)
-- ARGV  1 delivery length limit (entries), then pairs: stream id · LogEntry (msgpack)
-- Returns 1.
define('publish', function(keys, args)
  local readers_keys, payloads = {}, {}
  for i = 2, #args, 2 do
    readers_keys[#readers_keys + 1] = keys[1] .. args[i]
    payloads[#payloads + 1] = args[i + 1]
  end
  deliver(keys[2], args[1], readers_keys, payloads)
  return 1
end)
