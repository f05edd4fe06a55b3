-- The acts of one call, one after the other, and their answers.
--
-- Each refusal stands before the first write of its act, since a script cannot be undone. An act with
-- a ticket is decided once: see tickets.

local function apply(act, verb, arguments)
  if LISTED[verb] then
    return act(arguments)
  end
  return act(unpack(arguments))
end

-- The same ticket gives the same answer, a refusal too. A join that is asked for again prolongs the
-- lease.
local function once(verb, arguments)
  local ticket = table.remove(arguments, 1)
  local answer = answer_of(ticket)
  if not answer then
    answer = apply(WITH_TICKET[verb], verb, arguments)
    keep_answer(ticket, answer)
  elseif verb == 'join' then
    WRITES.beat(arguments[1], arguments[2])
  end
  return answer
end

-- The acts of the call, {verb, its arguments}, when what is known of their tickets has been read.
local function read_acts(arguments)
  local acts, tickets, at = {}, {}, FIRST
  while at <= #arguments do
    local verb, first, words = arguments[at], at + 2, {}
    for place = first, at + 1 + tonumber(arguments[at + 1]) do
      words[#words + 1] = arguments[place]
    end
    if WITH_TICKET[verb] then
      tickets[#tickets + 1] = words[1]
    end
    acts[#acts + 1] = { verb, words }
    at = first + #words
  end
  read_answers(tickets)
  return acts
end

local function do_act(verb, arguments)
  if WITH_TICKET[verb] then
    return once(verb, arguments)
  end
  return apply(READS[verb] or WRITES[verb], verb, arguments)
end

local function brings_data(acts)
  for _, act in ipairs(acts) do
    if GROWS[act[1]] then
      return true
    end
  end
  return false
end

-- Host and pid of each instance that has a lease.
local function living()
  local found = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', ROOT .. 'in', '(' .. int(now), '+inf')) do
    local info = instance_of(id)
    found[#found + 1] = info.host
    found[#found + 1] = info.pid
  end
  return found
end

-- A namespace of an older schema is opened by a worker alone, when no instance has a lease. Else return
-- the answer that refuses the call.
local function refuse_older(arguments)
  local works = arguments[FIRST] == 'open' and cjson.decode(arguments[FIRST + 2]).worker
  if works then
    begin_writing()  -- so that leases end though no worker of the older version lives any more
  end
  local found = living()
  if not works or #found > 0 then
    return { 'older', meta.schema, SCHEMA, works and 1 or 0, found }
  end
end

-- `is_script`: this is no function, which has flags.
return function(keys, arguments, is_script)
  for _, set in ipairs(AT_CALL) do
    set(keys[1], arguments)
  end
  if not meta.schema and call('EXISTS', META) == 1 then
    return { 'foreign' }
  elseif meta.schema and meta.schema ~= SCHEMA and not MIGRATIONS[meta.schema] then
    return { 'version', meta.schema, SCHEMA }
  elseif not meta.schema and arguments[FIRST] ~= 'open' then
    return { 'gone' }
  elseif not meta.schema and arguments[FIRST + 3] == '0' then
    return { 'missing' }
  end

  local refused = meta.schema and meta.schema ~= SCHEMA and refuse_older(arguments)
  if refused then
    return refused
  end

  local answers, writes, acts = { 'done', 0, '', now }, false, read_acts(arguments)
  for _, act in ipairs(acts) do
    if not writes and not READS[act[1]] then
      -- a server whose memory is full refuses the first write of a script, unless it needs no memory
      if is_script and not brings_data(acts) then
        call('HDEL', META, '')
      end
      begin_writing()
      writes = true
    end
    answers[#answers + 1] = do_act(unpack(act))
  end
  wake()
  write_counts()
  write_texts()
  answers[2], answers[3] = CALLER_LOOKS and 1 or 0, publish_news()
  return answers
end
