-- snapshot_version: hand out the next version of the configuration snapshot, before the database is read for it.
-- KEYS  1 version counter
-- Returns the version: max(previous + 1, Redis time in ms), text.
define('snapshot_version', function(keys, _)
  local version = int(next_epoch(redis.call('GET', keys[1]) or '0', now_ms()))
  redis.call('SET', keys[1], version)
  return version
end)
