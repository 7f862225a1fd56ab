-- snapshot_store: keep a configuration snapshot over an older one, and say so.
-- KEYS  1 snapshot
-- ARGV  1 version · 2 ConfigSnapshot (msgpack) · 3 channel that is told the version
-- Returns 1, or 0 when a snapshot of this or a newer version is there.
define('snapshot_store', function(keys, args)
  local stored = tonumber(redis.call('HGET', keys[1], 'version') or '0')
  if stored >= tonumber(args[1]) then return 0 end
  redis.call('HSET', keys[1], 'version', args[1], 'data', args[2])
  redis.call('PUBLISH', args[3], args[1])
  return 1
end)
