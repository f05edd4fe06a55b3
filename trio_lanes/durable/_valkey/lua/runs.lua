-- Acts of one run, and of those who send to it. Those of a run begin with its instance, id and fence.

-- Take the numbers that a store has, in order, out of those that the instance has, JSON. Return the rest,
-- and what the store has besides, up to a number.
local function compared(theirs, ours, up_to)
  local here, besides, lost = {}, {}, {}
  for _, number in ipairs(cjson.decode(ours)) do
    here[number] = true
  end
  for _, number in ipairs(theirs) do
    if not here[number] and number <= tonumber(up_to) then
      besides[#besides + 1] = number
    end
    here[number] = nil
  end
  for number in pairs(here) do
    lost[#lost + 1] = number
  end
  return lost, besides
end

-- `runs`, `requests`: JSON. Answer: what the store lacks of both, and the last number.
function WITH_TICKET.compare(instance, runs, claimed_to, requests, requested_to)
  if not is_alive(instance) then
    return { 0, {}, {}, 0 }
  end
  local fences, ids = {}, {}
  local flat = ask('ZRANGE', ROOT .. 'run:' .. instance, 0, -1, 'WITHSCORES')
  for at = 1, #flat, 2 do
    fences[#fences + 1] = tonumber(flat[at + 1])
    ids[fences[#fences]] = flat[at]
  end
  local lost_runs, runs_besides = compared(fences, runs, claimed_to)
  for place = #runs_besides, 1, -1 do  -- each goes to the front
    give_back(find(ids[runs_besides[place]]))
  end
  local numbers = {}
  for _, id in ipairs(members(ROOT .. 'ki:' .. instance)) do
    numbers[#numbers + 1] = tonumber(id)
  end
  table.sort(numbers)
  local lost_requests, requests_besides = compared(numbers, requests, requested_to)
  for _, number in ipairs(requests_besides) do
    lines.release(int(number), true)
  end
  return { 0, lost_runs, lost_requests, LAST }
end

local function keep(job, data)
  put_text(ROOT .. 'c:' .. job.id, data)
  job.kept = true
  put(job)
end

function WITH_TICKET.checkpoint(instance, id, fence, data)
  local job = run_of(instance, id, fence)
  if job then
    keep(job, data)
  end
  return { 0, job and 1 or 0 }
end

GROWS.checkpoint = true

-- `taken`: JSON, the id and the outcome of each job that ends. Answer: 1 if it is done, 0 if one of these
-- jobs does not wait in the session, false if the fence is not the run's.
function WITH_TICKET.take(instance, id, fence, data, taken)
  local job = run_of(instance, id, fence)
  if not job then
    return { 0, false }
  end
  taken = cjson.decode(taken)
  for _, one in ipairs(taken) do
    local other = find(one[1])
    local waits = other and (other.state == 'waiting' or other.state == 'parked')
    if not waits or not job.session or other.session ~= job.session then
      return { 0, 0 }
    end
  end
  keep(job, data)
  for _, one in ipairs(taken) do
    end_job(find(one[1]), 'cancelled', one[2])
  end
  return { 0, 1 }
end

function WITH_TICKET.lend_slot(instance, id, fence)
  local job = run_of(instance, id, fence)
  if job then
    job.lent = 1
    put(job)
    LOOK, CALLER_LOOKS = true, true
  end
  return { 0, job and 1 or 0 }
end

-- Answer: 1 if the run has its slot, 0 if none is free, false if the fence is not the run's.
function WITH_TICKET.regain_slot(instance, id, fence)
  local job = run_of(instance, id, fence)
  if not job then
    return { 0, false }
  end
  if job.lent == 1 then
    job.lent = 2
    put(job)
  end
  if job.lent and Budget.new():return_refused_by(job) then
    return { 0, 0 }
  end
  job.lent = nil
  put(job)
  return { 0, 1 }
end

-- Answer: the number of the event; false: the fence is not
-- the run's.
function WITH_TICKET.emit_event(instance, id, fence, event)
  local job = run_of(instance, id, fence)
  if not job then
    return { 0, false }
  end
  local key = ROOT .. 'e:' .. job.id
  job.emitted = (job.emitted or 0) + 1
  put(job)
  call('RPUSH', key, event)
  call('LTRIM', key, -EVENTS_KEPT, -1)
  tell_news(job)
  return { 0, job.emitted }
end

GROWS.emit_event = true

-- Of the session and the id, one is empty. Answer: the id and the number; or why not.
function WITH_TICKET.send(session, id, message, key)
  session, key = given(session), given(key)
  local job
  if session then
    job = head_of(session)
  else
    job = known(id)
  end
  if not job or job.state ~= 'running' then
    return { 0, 'no_active_run' }
  end
  local last = job.sent or 0
  if key then
    for number = 1, last do
      local former = message_of(job, number)
      if former and former.key == key then
        return { 0, job.id, number }
      end
    end
  end
  if last >= MESSAGES_KEPT then
    return { 0, 'not_streaming' }
  end
  job.sent = last + 1
  put(job)
  put_message(job, job.sent, { taken = false, key = key or false, text = message })
  return { 0, job.id, job.sent }
end

GROWS.send = true
