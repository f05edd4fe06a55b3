-- Answers questions from one snapshot, and says which batches are behind a known one.
-- ARGV: the beginning of all keys; the known head; who asks; for how many seconds it listens to
-- hints, if it says so; then questions: what, which key, how many words, these.
local root, known, me, listens = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local newest = redis.call('GET', root .. 'head') or ''
local time = redis.call('TIME')

if listens ~= '' then
  redis.call('ZREMRANGEBYSCORE', root .. 'listeners', '-inf', '(' .. time[1])
  redis.call('ZADD', root .. 'listeners', time[1] + listens, me)
end
local others = 0
for _, one in ipairs(redis.call('ZRANGEBYSCORE', root .. 'listeners', time[1], '+inf')) do
  if one ~= me then others = others + 1 end
end
local answers = { time[1] .. '.' .. string.format('%06d', time[2]), newest, missed(root, known, newest), others }
local at = 5
while at <= #ARGV do
  local what, key, words, answer = ARGV[at], root .. ARGV[at + 1], tonumber(ARGV[at + 2]), {}
  if what == 'all' then
    answer = redis.call('HGETALL', key)
  elseif what == 'get' then
    for first = at + 3, at + 2 + words, 4000 do
      local some = redis.call('HMGET', key, unpack(ARGV, first, math.min(first + 3999, at + 2 + words)))
      for number = 1, #some do answer[#answer + 1] = some[number] end
    end
  else
    local after, before, limit, back, rows = unpack(ARGV, at + 3, at + 7)
    local texts
    if back == '' then
      texts = redis.call('ZRANGEBYLEX', key, '(' .. after, '(' .. before, 'LIMIT', 0, limit)
    else
      texts = redis.call('ZREVRANGEBYLEX', key, '(' .. before, '(' .. after, 'LIMIT', 0, limit)
    end
    local found = false
    if rows ~= '' then
      found = {}
      for first = 1, #texts, 4000 do
        local names = {}
        for number = first, math.min(first + 3999, #texts) do
          names[#names + 1] = string.match(texts[number], ':(%d+)$')
        end
        local some = redis.call('HMGET', root .. rows, unpack(names))
        for number = 1, #some do found[#found + 1] = some[number] end
      end
    end
    answer = { texts, found }
  end
  answers[#answers + 1] = answer
  at = at + 3 + words
end
return answers
