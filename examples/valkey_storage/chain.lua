-- Stands before both scripts. The batches behind a known one, if they and that one are kept.
local function missed(root, known, newest)
  local from, to = tonumber(string.match(known, '^%d+')), tonumber(string.match(newest, '^%d+'))
  if not from or not to or to < from then return false end
  local found = redis.call('LRANGE', root .. 'deltas', from - to - 1, -1)
  if #found <= to - from or string.sub(found[1], 1, #known + 1) ~= known .. '\n' then return false end
  table.remove(found, 1)
  return found
end

