-- Why a job does not go on, by the same rules as those of a claim. Nothing changes, but for what a claim
-- finds to be empty, and drops.

-- Functions that are called before the place that they have in blockers.py, too.
local of_run, in_line, of_waiting, in_lane

local function a_blocker(kind, lane, job, ends, before)
  return {
    kind = kind, lane = lane, job = job or nil, before = before,
    ['until'] = ends and ends < huge and ends or nil,
  }
end

function WRITES.blockers_of(id)
  local job = known(id)
  if not job then
    return { 0, false }
  elseif job.state == 'running' then
    return { 0, json(of_run(job)) }
  elseif job.state == 'waiting' or job.state == 'parked' then
    return { 0, json(of_waiting(job)) }
  end
  return { 0, '[]' }
end

function of_run(job)
  local found = {}
  if job.lent == 1 then
    found[1] = a_blocker('lent', job.lane)
  else
    local budget = Budget.new()
    local refused = job.lent and budget:return_refused_by(job)
    if refused then
      found[1] = a_blocker(refused[1], refused[2], budget:holder(refused[1], job.lane))
    end
  end
  for _, request in ipairs(lines.of_instance(job.instance)) do
    if request.job == job.id and request.served == '0' then
      found[#found + 1] = in_line(request)
    end
  end
  return found
end

-- What a request that waits, waits for.
function in_line(request)
  local name = lines.name_of(request)
  local index = ROOT .. (request.costs and 'kw:' or 'kh:') .. request.line
  local before = lines.request(call('ZRANGE', index, 0, 0)[1])
  local job = before and before.job ~= '' and before.job
  if not request.costs then
    return a_blocker('lock', name, job)
  elseif not before or before.id ~= request.id then
    return a_blocker('quota', name, job)
  end
  local at = rates.ready_at(request.line, request.meters, request.costs)
  return a_blocker('quota', name, nil, at > now and at)
end

function of_waiting(job)
  if job.due and job.due > now then  -- else the next step queues it
    return { a_blocker(job.why, job.lane, nil, job.due) }
  end
  local found = {}
  if job.session then
    local lane = 'session:' .. job.session
    local paused = pause_of(job.session)
    if paused and paused > now then
      found[1] = a_blocker('pause', lane, nil, paused)
    end
    local head = head_of(job.session)
    if head and head.id ~= job.id then
      local kind = head.state == 'running' and 'session' or head.state == 'dead' and 'dead' or 'order'
      found[#found + 1] = a_blocker(kind, lane, head.id)
      return found
    end
  end
  for _, blocker in ipairs(in_lane(job)) do
    found[#found + 1] = blocker
  end
  return found
end

-- The live instances that have a handler, and the names of all handlers of these.
local function live_with(name)
  local live, names = {}, {}
  for _, id in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    local info = instance_of(id)
    if info.handles[name] and is_alive(id) then
      live[#live + 1] = id
      for other in pairs(info.handles) do
        names[other] = true
      end
    end
  end
  return live, names
end

local function some_runs_few(live, most)
  for _, id in ipairs(live) do
    if run_count(id) < most then
      return true
    end
  end
  return false
end

-- How many jobs of its lane are before a job on ready lists: PAGE at most.
local function ready_before(job)
  local before = 0
  for entry in pairs(lists_of(job.lane)) do
    local priority = tonumber(string.match(entry, '^-?%d'))
    local ends = priority > job.priority and '+inf' or '(' .. int(job.ready)
    if priority >= job.priority then
      before = before + ask('ZCOUNT', ready_list(job.lane, entry), '-inf', ends)
    end
  end
  return math.min(before, PAGE)
end

function in_lane(job)
  local lane, found = job.lane, {}
  local function add(...)
    found[#found + 1] = a_blocker(...)
  end
  local limit = limit_of(lane)
  if not limit then  -- only in a store that the check finds wrong
    return found
  elseif is_paused(limit) then
    add('pause', lane, nil, limit.paused_until)
  end
  local live, names = live_with(job.name)
  if #live == 0 then
    add('handler', lane)
  elseif not some_runs_few(live, max_runs_with(job)) then
    add('suspect', lane)
  end
  local budget, is_next = Budget.new(), true
  if job.ready and job.shelf ~= true then
    local turn = LaneTurn.new(lane, names, FairTurns.new(), budget)
    local first = turn:first()
    if first and first.id ~= job.id then
      is_next = false
      local before = turn.ages and turn:consume_before(job, PAGE) or ready_before(job)
      add('order', lane, first.id, nil, math.max(1, before))  -- of a fair lane: owners
    end
  end
  for _, refused in ipairs(budget:refused_by(lane)) do
    add(refused[1], refused[2], budget:holder(refused[1], lane))
  end
  for _, rate in ipairs(is_next and budget:rates_until(job) or {}) do
    add('rate', rate[1], nil, rate[2])
  end
  return found
end
