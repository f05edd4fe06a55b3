-- What is said while a job runs: events of its runs, and messages to them, on any instance.
--
-- The list e:<id> has the last EVENTS_KEPT events; `emitted` of the record is the number of the last.
-- The hash m:<id> has the messages by number: {taken, key, text}; `sent` of the record is the number of
-- the last. A message that a run has not taken at its end is deleted, by `leave`.

local EVENTS_KEPT = 1000
local EVENTS_BATCH = 100
local MESSAGES_KEPT = 1000

local function message_of(job, number)
  local text = call('HGET', ROOT .. 'm:' .. job.id, number)
  return text and cmsgpack.unpack(text) or nil
end

local function put_message(job, number, message)
  call('HSET', ROOT .. 'm:' .. job.id, number, cmsgpack.pack(message))
  tell_news(job)
end

-- Answer: numbers and events; nothing: there are none yet,
-- and the caller hears of them when there are; false: the job is unknown.
function WRITES.events(id, after)
  local job = known(id)
  if not job then
    return { 0, false }
  end
  local key, last, found = ROOT .. 'e:' .. job.id, job.emitted or 0, {}
  if last > tonumber(after) then
    local first = last - call('LLEN', key) + 1  -- the number of the first that is kept
    local from = math.max(after + 1, first)
    local texts = call('LRANGE', key, from - first, from - first + EVENTS_BATCH - 1)
    for at, text in ipairs(texts) do
      found[#found + 1] = from + at - 1
      found[#found + 1] = text
    end
  end
  if #found == 0 and not ENDED[job.state] and job.state ~= 'dead' then
    listen_to(job)
    return { 0 }
  end
  return { 0, found }
end

-- Answer: whether a run has taken the message; or -1: it may yet, and the caller hears of news; and for
-- how many microseconds, which are those of the run's lease.
function WRITES.sent(id, number)
  local job = known(id)
  local message = job and message_of(job, number)
  if not message then
    return { 0, 0 }
  elseif message.taken then
    return { 0, 1 }
  end
  local ends = tonumber(call('ZSCORE', ROOT .. 'in', job.instance) or 0)
  if ends <= now then
    return { 0, 0 }
  end
  listen_to(job)
  return { 0, -1, int(ends - now) }
end

-- Answer: the number and the text of the next message; nothing: there is none yet, and the caller hears
-- of news; false: the fence is not the run's.
function WRITES.receive(instance, id, fence, after)
  local job = run_of(instance, id, fence)
  if not job then
    return { 0, false }
  end
  for number = tonumber(after) + 1, job.sent or 0 do
    local message = message_of(job, number)
    if message then
      if not message.taken then
        message.taken = true
        put_message(job, number, message)
      end
      return { 0, number, message.text }
    end
  end
  listen_to(job)
  return { 0 }
end
