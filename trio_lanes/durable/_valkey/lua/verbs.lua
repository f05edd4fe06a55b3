-- The acts of one call, one after the other, and their answers.
--
-- Each refusal stands before the first write of its act, since a script cannot be undone. An act with
-- a ticket is done once: its answer is kept for five minutes, under b:<ticket>.

local REMEMBERED_FOR = 300000

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
  local arguments = {}
  for place = at + 2, most do
    arguments[#arguments + 1] = ARGV[place]
  end
  at = most + 1
  local answer
  if READS[verb] then
    answer = READS[verb](arguments)
  else
    if not writes then
      begin_writing()
      writes = true
    end
    if WRITES[verb] then
      answer = WRITES[verb](arguments)
    else
      answer = once(table.remove(arguments, 1), verb, arguments)
    end
  end
  answers[#answers + 1] = answer
end
wake()
write_records()
answers[2] = CALLER_LOOKS and 1 or 0
return answers
