-- forget: delete kept answers.
-- KEYS  as of `keep`
-- ARGV  1 how the entries' names begin; '' for all of the tenant
-- Returns {how many, their bytes, bytes kept now}
define('forget', function(keys, args)
  local count, bytes = 0, 0
  local total = kept_total(keys, now_ms())
  for _, name in ipairs(redis.call('ZRANGE', keys[3], 0, -1)) do
    if string.sub(name, 1, #args[1]) == args[1] then
      bytes = bytes + kept_drop(keys, name)
      count = count + 1
    end
  end
  return { count, bytes, total - bytes }
end)
