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

return function(keys, arguments)
  for _, set in ipairs(AT_CALL) do
    set(keys[1], arguments)
  end
  if not meta.schema and call('EXISTS', META) == 1 then
    return { 'foreign' }
  elseif meta.schema and meta.schema > SCHEMA then
    return { 'version', meta.schema }
  elseif not meta.schema and arguments[FIRST] ~= 'open' then
    return { 'gone' }
  elseif not meta.schema and arguments[FIRST + 3] == '0' then
    return { 'missing' }
  end

  local answers = { 'done', 0, '' }
  local at, writes = FIRST, false
  while at <= #arguments do
    local verb, most = arguments[at], at + 1 + tonumber(arguments[at + 1])
    local ticket, first, words = nil, at + 2, {}
    if WITH_TICKET[verb] then
      ticket, first = arguments[first], first + 1
    end
    for place = first, most do
      words[place - first + 1] = arguments[place]
    end
    at = most + 1
    if not HOT[verb] then
      write_tails()
      write_listed()
    end
    local answer
    if READS[verb] then
      answer = READS[verb](words)
    else
      if not writes then
        begin_writing()
        writes = true
      end
      if ticket then
        answer = once(ticket, verb, words)
      else
        answer = WRITES[verb](words)
      end
    end
    answers[#answers + 1] = answer
  end
  wake()
  write_records()
  write_counts()
  answers[2], answers[3] = CALLER_LOOKS and 1 or 0, publish_news()
  return answers
end
