-- What runs say while they run: events, which clients read on any instance.
--
-- The list e:<id> has the last EVENTS_KEPT events; `emitted` of the record is the number of the last.

local EVENTS_KEPT = 1000
local EVENTS_AT_ONCE = 100

-- Arguments: the instance, the id, the fence, the event. Answer: its number; false: the fence is not
-- the run's.
local function emit(arguments)
  local job = run_of(arguments)
  if not job then
    return { 0, false }
  end
  local key = ROOT .. 'e:' .. job.id
  job.emitted = (job.emitted or 0) + 1
  put(job)
  call('RPUSH', key, arguments[4])
  call('LTRIM', key, -EVENTS_KEPT, -1)
  tell_news(job)
  return { 0, job.emitted }
end

-- Arguments: the id, the number after which. Answer: numbers and events; nothing: there are none yet,
-- and the caller is told when there are; false: the job is unknown.
local function events(arguments)
  local job, after = known(arguments[1]), tonumber(arguments[2])
  if not job then
    return { 0, false }
  end
  local key, last, found = ROOT .. 'e:' .. job.id, job.emitted or 0, {}
  if last > after then
    local first = last - call('LLEN', key) + 1  -- the number of the first that is kept
    local from = math.max(after + 1, first)
    local texts = call('LRANGE', key, from - first, from - first + EVENTS_AT_ONCE - 1)
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

WITH_TICKET.emit = emit
WRITES.events = events
