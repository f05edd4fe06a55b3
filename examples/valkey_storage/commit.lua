-- Writes a batch, if its base is the newest one, nothing that was guessed is wrong, and nobody else
-- has a turn; else says what it lacks, and has written nothing.
-- ARGV: the beginning of all keys; the base and the batch; its delta; who commits; for how many
-- milliseconds it wants a turn if it is late; a hint; how many deltas are kept; how many words the
-- guesses have; these; then what is written: a command, which key, how many words, these.
local root, base, head, delta, me, turn, hint, kept, guesses = unpack(ARGV, 1, 9)
local newest, time = redis.call('GET', root .. 'head') or '', redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])

local holder = redis.call('GET', root .. 'turn')
if holder and holder ~= me then
  return { 'wait', now, newest, redis.call('PTTL', root .. 'turn') }
end
if newest ~= base then
  if turn ~= '' then redis.call('SET', root .. 'turn', me, 'PX', turn) end
  return { 'late', now, newest, missed(root, base, newest) }
end
local at, written = 10, 10 + tonumber(guesses)
while at < written do
  local what, key, words = ARGV[at], root .. ARGV[at + 1], tonumber(ARGV[at + 2])
  if what == 'absent' then
    local rows = redis.call('HMGET', key, unpack(ARGV, at + 3, at + 2 + words))
    for number = 1, words do
      if rows[number] then return { 'wrong', now, newest } end
    end
  else
    for number = at + 3, at + 2 + words do
      local first = ARGV[number]
      if redis.call('ZRANGEBYLEX', key, '[' .. first, '(' .. first .. '~', 'LIMIT', 0, 1)[1] then
        return { 'wrong', now, newest }
      end
    end
  end
  at = at + 3 + words
end
while at <= #ARGV do
  local words = tonumber(ARGV[at + 2])
  redis.call(ARGV[at], root .. ARGV[at + 1], unpack(ARGV, at + 3, at + 2 + words))
  at = at + 3 + words
end
redis.call('SET', root .. 'head', head)
redis.call('RPUSH', root .. 'deltas', head .. '\n' .. delta)
redis.call('LTRIM', root .. 'deltas', -kept, -1)
if holder then redis.call('DEL', root .. 'turn') end
local others = 0
for _, one in ipairs(redis.call('ZRANGEBYSCORE', root .. 'listeners', time[1], '+inf')) do
  if one ~= me then
    if hint ~= '' then redis.call('PUBLISH', root .. 'to:' .. one, hint) end
    others = others + 1
  end
end
return now .. ' ' .. others
