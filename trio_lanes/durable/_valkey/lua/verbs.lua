-- The acts of one call, one after the other, and their answers.
--
-- Acts that accept, end and claim jobs follow one another without writing what only others read.
--
-- Each refusal stands before the first write of its act, since a script cannot be undone. An act with
-- a ticket is done once: its answer is kept for five minutes, under b:<ticket>.

local REMEMBERED_FOR = 300000
local HOT = { enqueue = true, step = true }

-- The same ticket gives the same answer; a refused act can be asked for again. A join that is asked
-- for again prolongs the lease.
local function once(ticket, verb, arguments)
  local key = ROOT .. 'b:' .. ticket
  local text = call('GET', key)
  if text then
    if verb == 'join' then
      WRITES.beat(arguments)
    end
    return cmsgpack.unpack(text)
  end
  local answer = WITH_TICKET[verb](arguments)
  if answer[1] == 0 then
    call('SET', key, cmsgpack.pack(answer), 'PX', REMEMBERED_FOR)
  end
  return answer
end

if META_TYPE ~= 'hash' and META_TYPE ~= 'none' then
  return { 'foreign' }
elseif META_TYPE == 'hash' and not meta.schema then
  return { 'foreign' }
elseif meta.schema and meta.schema > SCHEMA then
  return { 'version', meta.schema }
elseif not meta.schema and ARGV[FIRST] ~= 'open' then
  return { 'gone' }
elseif not meta.schema and ARGV[FIRST + 3] == '0' then
  return { 'missing' }
end

local answers = { 'done', 0 }
local at, writes = FIRST, false
while at <= #ARGV do
  local verb, most = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
  local ticket, first, arguments = nil, at + 2, {}
  if WITH_TICKET[verb] then
    ticket, first = ARGV[first], first + 1
  end
  for place = first, most do
    arguments[place - first + 1] = ARGV[place]
  end
  at = most + 1
  if not HOT[verb] then
    write_listed()
  end
  local answer
  if READS[verb] then
    answer = READS[verb](arguments)
  else
    if not writes then
      begin_writing()
      writes = true
    end
    if ticket then
      answer = once(ticket, verb, arguments)
    else
      answer = WRITES[verb](arguments)
    end
  end
  answers[#answers + 1] = answer
end
wake()
publish_news()
write_records()
write_counts()
answers[2] = CALLER_LOOKS and 1 or 0
return answers
