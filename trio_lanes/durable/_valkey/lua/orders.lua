-- Orders of an operator: cancel, put first, promote, clear, pause, configure, requeue, purge.

-- Functions that are called before the place that they have in orders.py, too.
local known_lanes, check_unused, letters, open_session

-- The beginning of the limits of a lane that gets its first number, or of the pause of a lane of a template.
local NO_LIMIT = { concurrency = 0, max_waiting = huge, pause_only = true, rates = '[]', meters = {} }

-- `running`: whether a running job is cancelled too.
function WITH_TICKET.cancel(id, outcome, running)
  local job = find(id)
  if not job or ENDED[job.state] or job.state == 'dead' then
    return { 0, 0 }
  elseif job.state == 'running' and running == '0' then
    return { 0, 0 }
  elseif job.state == 'running' then
    if not job.cancel then
      job.cancel = outcome
      put(job)
    end
    look_at(job.instance)
  else
    end_job(job, 'cancelled', outcome)
  end
  return { 0, 1 }
end

-- Put a waiting job first in its session, behind jobs that were put first before it,
-- and behind a head that does not wait. Their places are below 0, in the order of the numbers.
function WITH_TICKET.put_first(id)
  local job = find(id)
  if not job or job.state ~= 'waiting' or not job.session then
    return { 0, 0 }
  elseif job.place < 0 then
    return { 0, 1 }
  end
  local head, ahead = head_of(job.session), -2 ^ 52
  local place = next_number() + ahead
  if head.id ~= job.id and head.place >= 0 then
    if head.state == 'waiting' then
      if head.party then
        fair.leave(head)
      end
      head.ready, head.shelf = nil, nil
      set_ready(job, true)
    else
      head.place = place
      place = next_number() + ahead
    end
    put(head)
  end
  job.place = place
  put(job)
  return { 0, 1 }
end

-- Make a parked job due now, and queue it as each job that becomes due.
function WITH_TICKET.promote(id)
  local job = find(id)
  if not job or job.state ~= 'parked' then
    return { 0, 0 }
  end
  promote_one(job)
  return { 0, 1 }
end

-- Cancel the job that runs in a session.
function WITH_TICKET.abort_run(session, outcome)
  local job = running_in(session)
  return job and WITH_TICKET.cancel(job.id, outcome, '1') or { 0, 0 }
end

-- Add the last waiting and parked jobs of an index with ids below `before`, up to BATCH jobs in all.
local function add_clearable(jobs, key, before)
  local below, most = '(' .. int(before), BATCH + 1  -- one job of a session may run
  for _, id in ipairs(ask('ZREVRANGEBYSCORE', ROOT .. key, below, '-inf', 'LIMIT', 0, most)) do
    local job = find(id)
    if job.state ~= 'running' and #jobs < BATCH then
      jobs[#jobs + 1] = job
    end
  end
end

-- `after`: the number below which ids are cleared, or ''.
-- Answer: how many, and that number for the next portion; false: there are no more.
function WITH_TICKET.clear(lane, session, outcome, after)
  lane, session = given(lane), given(session)
  local of = lane and known_lanes(lane) or {}
  if lane and not known_lanes(lane) then
    return unknown_lane(lane)
  end
  local before, jobs = tonumber(after) or next_number(), {}
  for _, one in ipairs(of) do
    add_clearable(jobs, 'w:' .. one, before)
  end
  if session then
    add_clearable(jobs, 'si:' .. session, before)
  end
  -- from the tail: if the head ended first, each of its successors would become ready in turn
  table.sort(jobs, function(one, other)
    return (one.place or 0) > (other.place or 0)
  end)
  local lowest = before
  for _, job in ipairs(jobs) do
    lowest = math.min(lowest, tonumber(job.id))
    end_job(job, 'cancelled', outcome)
  end
  if #jobs == BATCH then
    return { 0, #jobs, int(#of > 1 and before or lowest) }
  end
  if session then
    local head = head_of(session)
    if head and head.state == 'dead' then
      open_session(head)
    end
  end
  return { 0, #jobs, false }
end

-- `micros` may be 'inf'. It prolongs a pause, never shortens it.
function WITH_TICKET.pause(lane, session, micros)
  lane, session = given(lane), given(session)
  local ends = now + number_of(micros)
  if lane then
    if not known_lanes(lane) then
      return unknown_lane(lane)
    end
    local limit = copied(lanes()[lane] or NO_LIMIT)
    limit.paused_until = math.max(ends, limit.paused_until or ends)
    ends = limit.paused_until
    put_lane(lane, limit)
    if not is_template(lane) then
      note_hold(lane, 'pause', ends)
    end
  else
    ends = math.max(ends, pause_of(session) or ends)
    call('ZADD', ROOT .. 'pauses', ends == huge and 'inf' or ends, session)
    FIRSTS.pauses = nil
    local head = head_of(session)
    if head and head.ready then
      if head.party then
        fair.leave(head)
        head.ready = next_number()
      end
      head.shelf = true
      put(head)
    end
  end
  SOON = ends < huge
  return { 0 }
end

function WITH_TICKET.resume(lane, session)
  lane, session = given(lane), given(session)
  if lane then
    local names, all = known_lanes(lane), lanes()
    if not names then
      return unknown_lane(lane)
    end
    names[#names + 1] = lane
    for _, name in ipairs(names) do
      if all[name] then
        local limit = copied(all[name])
        limit.paused_until = nil
        put_lane(name, not limit.pause_only and limit or nil)
      end
      note_hold(name, '')
    end
    LOOK = true
  else
    resume_session(session)
  end
  return { 0 }
end

local function put_groups(before, list)
  local after = {}
  for _, group in ipairs(list) do
    after[group.name] = group
  end
  for name, group in pairs(before) do
    if not after[name] then
      rates.replace('group ' .. name, group.meters, nil)
      put_group(name, nil)
    end
  end
  for _, group in ipairs(list) do
    local name, was = group.name, before[group.name]
    rates.replace('group ' .. name, was and was.meters, group.meters)
    put_group(name, group)
  end
end

-- The limits after the changes of lanes; or nil, and a refusal.
local function changed_lanes(before, changes)
  local after, removes = {}, false
  for name, limit in pairs(before) do
    after[name] = limit
  end
  for _, change in ipairs(changes) do
    local name, was = change.name, before[change.name]
    if change.gone then
      if not is_configured(before, name) then
        return nil, unknown_lane(name)
      end
      after[name], removes = nil, true
    elseif change.limit then
      after[name] = change.limit
    else
      local limit = copied(was or NO_LIMIT)  -- a lane of a template keeps its pause
      limit.concurrency, limit.proposed, limit.pause_only = change.concurrency, nil, nil
      after[name] = limit
    end
  end
  for name, limit in pairs(before) do
    if limit.pause_only and not label_of(after, name) then
      after[name] = nil
    end
  end
  return after, removes and check_unused(before, after) or nil
end

local function put_lanes(before, after)
  local names = {}
  for _, all in ipairs({ before, after }) do
    for name in pairs(all) do
      names[name] = true
    end
  end
  for name in pairs(names) do
    if before[name] ~= after[name] then
      put_lane(name, after[name])
      if not after[name] and not is_template(name) then
        call('SADD', ROOT .. 'lr', name)  -- its jobs may run, as jobs of a lane of a template
      end
    end
  end
  call('ZREMRANGEBYSCORE', ROOT .. 'ml', '-inf', now)
  for _, lane in ipairs(call('ZRANGE', ROOT .. 'ml', 0, -1)) do
    local was, is = limit_of(lane, before), limit_of(lane, after)
    if not (was and is) or was.meters ~= is.meters then
      rates.replace('lane ' .. lane, was and was.meters, is and is.meters)
    end
  end
end

-- JSON of lanes, [{name, limit}, {name, concurrency}, {name, gone}...]; of groups, [...], or ''; of rules.
-- A lane with `concurrency` gets another alone; `gone` removes it.
function WITH_TICKET.configure(new_lanes, new_groups, new_rules)
  local before, changed_rules = lanes(), cjson.decode(new_rules)
  local after, refused = changed_lanes(before, cjson.decode(new_lanes))
  if refused then
    return refused
  end
  local groups_before = groups()
  local list = new_groups ~= '' and cjson.decode(new_groups) or nil
  local replaces = list ~= nil
  if not replaces then
    list = {}
    for _, group in pairs(groups_before) do
      list[#list + 1] = group
    end
  end
  refused = rates.check_groups(after, list)
  if refused then
    return refused
  end
  put_lanes(before, after)
  fair.relist_changed(before, after)
  if replaces then
    put_groups(groups_before, list)
  end
  if next(changed_rules) then
    local all = copied(rules())
    for name, value in pairs(changed_rules) do
      all[name] = value
    end
    put_rules(all)
  end
  LOOK, SOON = true, true
  return { 0 }
end

-- Dead and failed jobs of a selection. Answer: how many, and the id after which the next portion begins;
-- false: there are no more.
function WITH_TICKET.requeue(of, after)
  local jobs, last = letters(of, after)
  for _, job in ipairs(jobs) do
    job.attempts, job.crashes, job.crashes_alone, job.crashed_with = nil, nil, nil, nil
    job.cancel, job.due, job.why = nil, nil, nil
    revive(job)
  end
  return { 0, #jobs, last }
end

function WITH_TICKET.purge(of, after)
  local jobs, last = letters(of, after)
  for _, job in ipairs(jobs) do
    open_session(job)
    tell_news(job)  -- a task may wait for it, if it has heard nothing
    forget(job)
  end
  return { 0, #jobs, last }
end

-- The lanes that a name means: that lane, or all lanes of that template that have jobs or a pause, in
-- order; nil: there is no such lane or template.
function known_lanes(name)
  local all = lanes()
  if not (is_template(name) and all[name]) then
    return label_of(all, name) and { name } or nil
  end
  local found, names = {}, {}
  for lane in pairs(all) do
    found[lane] = true
  end
  for _, count in ipairs(all_counts()) do
    found[count[2]] = true
  end
  for lane in pairs(found) do
    if label_of(all, lane) == name then
      names[#names + 1] = lane
    end
  end
  table.sort(names)
  return names
end

-- A refusal, if a lane with jobs does not exist any more; else nil.
function check_unused(before, after)
  local used, names = {}, {}
  for _, count in ipairs(all_counts()) do
    local lane = count[2]
    if not used[lane] then
      names[#names + 1] = lane
    end
    used[lane] = (used[lane] or 0) + count[4]
  end
  table.sort(names)
  for _, lane in ipairs(names) do
    if label_of(before, lane) and not label_of(after, lane) then
      return { 1, 'used', lane, used[lane] }
    end
  end
end

function letters(of, after)
  of = cjson.decode(of)
  of.states = { dead = of.states.dead, failed = of.states.failed }
  return page_of(of, after == '' and '0' or after, BATCH)
end

function open_session(job)
  if job.place then
    job.place = nil
    put(job)
    list_next_head(job.session)
  end
end
