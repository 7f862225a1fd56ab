-- rolled: the database has minutes now, unless something was filed in them since they were read.
-- KEYS  1 minutes to roll up
-- ARGV  pairs: minute (Unix s), how many times something had been filed in it
-- Returns how many are done with.
define('rolled', function(keys, args)
  local done = 0
  for i = 1, #args, 2 do
    if redis.call('HGET', keys[1], args[i]) == args[i + 1] then done = done + redis.call('HDEL', keys[1], args[i]) end
  end
  return done
end)
