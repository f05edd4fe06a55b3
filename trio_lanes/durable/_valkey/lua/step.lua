-- Steps: finish runs under their fences, and claim jobs, in one act.

local FINISH_FIELDS = 8
local FORGET_LANES_EVERY = 60 * SECOND

-- The fields: id, fence, kind, a text, whether an attempt counts, whether the job leaves its place;
-- the type of the error, the error in one line.
local FINISH = {
  s = function(job, finish) end_job(job, 'succeeded', finish.text, 1) end,
  f = function(job, finish) end_job(job, 'failed', finish.text, 1, finish.failure) end,
  d = function(job, finish) mark_dead(job, finish.text, 1, finish.failure) end,
  p = function(job, finish)
    local failure = finish.failure[2] ~= '' and finish.failure[2] or nil
    postpone(job, tonumber(finish.text), finish.counts, finish.leaves, failure)
  end,
  r = function(job) give_back(job) end,
  c = function(job) end_job(job, 'cancelled', job.cancel or '{}') end,
}

local function read_finish(arguments, at)
  return {
    text = arguments[at + 3], counts = arguments[at + 4] == '1', leaves = arguments[at + 5] == '1',
    failure = { arguments[at + 6], arguments[at + 7] },
  }
end

local function cancels_of(instance)
  local cancels = {}
  for _, id in ipairs(ask('ZRANGE', ROOT .. 'x:' .. instance, 0, -1)) do
    cancels[#cancels + 1] = id
    cancels[#cancels + 1] = find(id).fence
  end
  return cancels
end

-- The claims of the last step are the instance's runs whose fences are above `after`.
local function step_again(instance, number, last)
  if number < last.number then
    return { 0, {}, {}, {}, false }
  end
  local claims = {}
  local after = '(' .. int(last.after)
  for _, id in ipairs(ask('ZRANGEBYSCORE', ROOT .. 'run:' .. instance, after, '+inf')) do
    claims[#claims + 1] = claim_of(find(id))
  end
  local first = math.min(first_time('due') or huge, first_time('pauses') or huge)
  CALLER_LOOKS = true  -- a limit that keeps jobs from starting is found by the next step
  return { 0, claims, last.stale, cancels_of(instance), next_due(first) }
end

-- Forget, now and then, what is kept of lanes of templates that have no jobs any more.
local function forget_lanes()
  local at = meta.forget_at
  if at and at > now then
    return
  end
  meta.forget_at = now + FORGET_LANES_EVERY
  call('HSET', META, 'forget_at', meta.forget_at)
  if not at then
    return
  end
  for name, limit in pairs((lanes())) do
    if limit.pause_only and (limit.paused or 0) <= now then
      put_lane(name, nil)
    end
  end
  for _, key in ipairs(call('HKEYS', ROOT .. 'turns')) do
    local lane = string.match(key, '^passed %-?%d (.*)$')
    if lane and not lanes()[lane] and ask_all('EXISTS', ROOT .. 'w:' .. lane) == 0 then
      call('HDEL', ROOT .. 'turns', key)
    end
  end
end

-- Arguments: the instance, the step's number, the room, FINISH_FIELDS for each finish.
-- Answer: the claims, the stale fences, (id, fence) of cancelled runs, when something falls due.
local function step(arguments)
  local instance, number, room = arguments[1], tonumber(arguments[2]), tonumber(arguments[3])
  local stale, finished = {}, false
  if not is_alive(instance) then
    for at = 4, #arguments, FINISH_FIELDS do
      stale[#stale + 1] = tonumber(arguments[at + 1])
    end
    return { 0, {}, stale, {}, false }
  end
  local last = last_step(instance)
  if number <= last.number then
    return step_again(instance, number, last)
  end
  local ids = {}
  for at = 4, #arguments, FINISH_FIELDS do
    ids[#ids + 1] = arguments[at]
  end
  find_all(ids)
  for at = 4, #arguments, FINISH_FIELDS do
    local fence = tonumber(arguments[at + 1])
    local job = running_of(arguments[at], fence)
    if job then
      FINISH[arguments[at + 2]](job, read_finish(arguments, at))
    else
      stale[#stale + 1] = fence
    end
    finished = true
  end
  local first = promote()
  forget_done()
  forget_lanes()
  local info, after = instance_of(instance), next_number()
  local claims, due, unfinished = take(instance, info, room)
  put_last_step(instance, { number = number, after = after, stale = stale })
  -- this instance has claimed already; what is left is for others, unless nothing has changed
  LOOK = LOOK or finished or #claims > 0
  if LOOK then
    wake(true)
    LOOK, SOON = false, false
  end
  CALLER_LOOKS = CALLER_LOOKS or unfinished
  local is_idle = not unfinished and #claims < room
  call(is_idle and 'SADD' or 'SREM', ROOT .. 'idle:' .. info.kind, instance)
  return { 0, claims, stale, cancels_of(instance), next_due(math.min(first, due or huge)) }
end

-- ---- acts of one run. Arguments: the instance, the id, the fence.

local function keep(job, data)
  put_text(ROOT .. 'c:' .. job.id, data)
  job.kept = true
  put(job)
end

local function checkpoint(arguments)
  local job = run_of(arguments)
  if job then
    keep(job, arguments[4])
  end
  return { 0, job and 1 or 0 }
end

-- More arguments: data for the next attempt, the id and the outcome of each job that ends. Answer: 1
-- if it is done, 0 if one of these jobs does not wait in the session, false if the fence is not the
-- run's.
local function take_from_session(arguments)
  local job = run_of(arguments)
  if not job then
    return { 0, false }
  end
  for at = 5, #arguments, 2 do
    local other = find(arguments[at])
    local waits = other and (other.state == 'waiting' or other.state == 'parked')
    if not waits or not job.session or other.session ~= job.session then
      return { 0, 0 }
    end
  end
  keep(job, arguments[4])
  for at = 5, #arguments, 2 do
    end_job(find(arguments[at]), 'cancelled', arguments[at + 1])
  end
  return { 0, 1 }
end

local function lend_slot(arguments)
  local job = run_of(arguments)
  if job then
    job.lent = 1
    put(job)
    LOOK, CALLER_LOOKS = true, true
  end
  return { 0, job and 1 or 0 }
end

-- Answer: 1 if the run has its slot, 0 if none is free, false if the fence is not the run's.
local function regain_slot(arguments)
  local job = run_of(arguments)
  if not job then
    return { 0, false }
  end
  if job.lent == 1 then
    job.lent = 2
    put(job)
  end
  if job.lent and new_budget():return_refused_by(job) then
    return { 0, 0 }
  end
  job.lent = nil
  put(job)
  return { 0, 1 }
end

WRITES.step = step
WITH_TICKET.checkpoint = checkpoint
GROWS.checkpoint = true
WITH_TICKET.take = take_from_session
WITH_TICKET.lend_slot = lend_slot
WITH_TICKET.regain_slot = regain_slot
