-- dismiss: nothing was sent of drafts of a tenant, and nothing will be.
-- KEYS  1 open drafts · 2 when they end
-- ARGV  names of drafts
-- Returns for each 1, or 0 where its prompt was sent after all, through another gateway.
define('dismiss', function(keys, args)
  local found = {}
  for i, name in ipairs(args) do found[i] = draft_close(keys, name) and 1 or 0 end
  return found
end)
