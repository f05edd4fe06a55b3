-- What instances do: they keep a lease, accept jobs, and finish and claim jobs in steps.
--
-- The sorted set `in` has the end of each lease, i:<instance> what the incarnation has joined with,
-- st:<instance> its last step. A lease that is over never comes back.

local MAX_REAPED = 10
local JOB_FIELDS = 11
local FINISH_FIELDS = 8
local FORGET_LANES_EVERY = 60 * SECOND

-- Functions that are called before the place that they have in engine.py, too.
local reap, forgive, remove_instance, drop_instance, accept, forget_lanes, step_again, cancels, finish
local compare

local function runs_of(instance)
  return ask('ZRANGE', ROOT .. 'run:' .. instance, 0, -1)
end

-- Arguments: the incarnation, microseconds of its lease, the former one, host, pid, kind, affinity, the
-- number of lost runs and the id and fence of each, the number of held fences and these, the handlers.
function WITH_TICKET.join(arguments)
  local instance, ttl, former = arguments[1], tonumber(arguments[2]), arguments[3]
  local at = 8
  for _ = 1, tonumber(arguments[at]) do
    forgive(arguments[at + 1], tonumber(arguments[at + 2]))
    at = at + 2
  end
  at = at + 1
  local held = {}
  for _ = 1, tonumber(arguments[at]) do
    at = at + 1
    held[tonumber(arguments[at])] = true
  end
  local ids = runs_of(former)
  for place = #ids, 1, -1 do
    local job = find(ids[place])
    if held[job.fence] then
      job.instance = instance
      put(job)
    else
      give_back(job)
    end
  end
  drop_instance(former)
  local info = {
    host = arguments[4], pid = arguments[5], kind = arguments[6], names = {}, handles = {},
    channel = CHANNEL, since = now, affinity = tonumber(arguments[7]),
  }
  for place = at + 1, #arguments do
    info.names[#info.names + 1], info.handles[arguments[place]] = arguments[place], true
  end
  put_instance(instance, info)
  put_last_step(instance, { number = 0, after = 0, stale = {} })
  call('ZADD', ROOT .. 'in', now + ttl, instance)
  call('HSET', ROOT .. 'kinds', info.kind, cmsgpack.pack(info.names))
  reap(instance)
  LOOK, CALLER_LOOKS = true, true
  return { 0 }
end

LISTED.join = true

-- Answer: whether the instance has its lease.
function WRITES.beat(instance, ttl)
  if not is_alive(instance) then
    return { 0, 0 }
  end
  call('ZADD', ROOT .. 'in', now + tonumber(ttl), instance)
  reap(instance)
  return { 0, 1 }
end

function reap(instance)
  local over = call('ZRANGEBYSCORE', ROOT .. 'in', '-inf', now, 'LIMIT', 0, MAX_REAPED)
  for _, id in ipairs(over) do
    if id ~= instance then
      remove_instance(id)
    end
  end
end

-- Take back the crash of a run that ended because its lease was lost.
function forgive(id, fence)
  local job = find(id)
  if not job or ENDED[job.state] or not forgiven(job, fence) then
    return
  end
  job.crashes = math.max(0, (job.crashes or 0) - 1)
  if job.crashed_with == 1 then
    job.alone = (job.alone or 0) - 1
  end
  job.crashed_with = nil
  put(job)
  if job.fence == fence and job.state == 'dead' then  -- this crash made it dead
    revive(job)
  end
end

-- End an incarnation: its runs are given back with a crash. It can be repeated.
function remove_instance(id)
  crash(runs_of(id))
  drop_instance(id)
  LOOK = true
end

function drop_instance(id)
  lines.end_requests(id)
  local info = instance_of(id)
  if not info then
    return
  end
  call('ZREM', ROOT .. 'in', id)
  delete_instance(id)
  call('SREM', ROOT .. 'idle:' .. info.kind, id)
  for _, other in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    if instance_of(other).kind == info.kind then
      return
    end
  end
  call('HDEL', ROOT .. 'kinds', info.kind)
end

-- Arguments: the instance, the fences of its runs whose ends are not recorded. The server may have
-- older data: what it has besides is given back. Answer: the fences of which it knows nothing.
function WRITES.compare_runs(arguments)
  local instance, lost, has = arguments[1], { 0 }, {}
  local held = {}
  for at = 2, #arguments do
    held[tonumber(arguments[at])] = true
  end
  for _, id in ipairs(runs_of(instance)) do
    local job = find(id)
    has[job.fence] = true
    if not held[job.fence] then
      give_back(job)
    end
  end
  for fence in pairs(held) do
    if not has[fence] then
      lost[#lost + 1] = fence
    end
  end
  return lost
end

LISTED.compare_runs = true

function WRITES.leave(instance)
  remove_instance(instance)
  return { 0 }
end

-- A process has ended.
function WRITES.declare_dead(host, pid)
  for _, id in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    local info = instance_of(id)
    if info.host == host and info.pid == pid then
      remove_instance(id)
    end
  end
  return { 0 }
end

local function forget_done()
  local over = ask('ZRANGEBYSCORE', ROOT .. 'done', '-inf', now, 'LIMIT', 0, BATCH)
  for _, id in ipairs(over) do
    forget(find(id))
  end
  CALLER_LOOKS = CALLER_LOOKS or #over == BATCH  -- there may be more
end

local function read_item(arguments, at)
  return {
    name = arguments[at], payload = arguments[at + 1], session = given(arguments[at + 2]),
    lane = arguments[at + 3], priority = tonumber(arguments[at + 4]),
    key = given(arguments[at + 5]), digest = given(arguments[at + 6]),
    delay = tonumber(arguments[at + 7]), rest = arguments[at + 8],
    cost = arguments[at + 9] ~= '' and cjson.decode(arguments[at + 9]) or nil,
    run_at = tonumber(arguments[at + 10]),
  }
end

local function refusal(items)
  local keyed_here, fresh = {}, {}
  for _, item in ipairs(items) do
    local lane = limit_of(item.lane)
    if not lane then
      return unknown_lane(item.lane)
    end
    local same = item.key and (keyed_here[item.key] or keyed(item.key))
    if same and same.id and is_over(same) then
      same = nil
    end
    if same then
      local differs = compare(item, same)
      if differs then
        return differs
      end
    else
      if item.key then
        keyed_here[item.key] = item
      end
      if item.cost then
        local unit, counted = Budget.new():check_units(item.lane, item.cost)
        if unit then
          return { 1, 'unit', unit, item.lane, unpack(counted) }
        end
      end
      if lane.m then
        fresh[item.lane] = (fresh[item.lane] or 0) + 1
        if ask('ZCARD', ROOT .. 'w:' .. item.lane) + fresh[item.lane] > lane.m then
          return { 1, 'full', item.lane, lane.m }
        end
      end
    end
  end
end

-- Arguments: JOB_FIELDS for each job. Answer: the ids.
function WITH_TICKET.enqueue(arguments)
  local items = {}
  for at = 1, #arguments, JOB_FIELDS do
    items[#items + 1] = read_item(arguments, at)
  end
  local refused = refusal(items)
  if refused then
    return refused
  end
  local answer = { 0 }
  for _, item in ipairs(items) do
    answer[#answer + 1] = accept(item)
  end
  return answer
end

GROWS.enqueue = true
LISTED.enqueue = true

function accept(item)
  if item.key then
    local same = keyed(item.key)
    if same and not is_over(same) then
      return same.id
    elseif same then
      forget(same)
    end
  end
  local job = {
    name = item.name, lane = item.lane, session = item.session, priority = item.priority,
    key = item.key, digest = item.digest, submitted = now, submitter = CHANNEL,
    state = 'waiting', cost = item.cost, rest = item.rest ~= '' and item.rest or nil,
  }
  if item.delay > 0 then
    job.state, job.due, job.why = 'parked', now + item.delay, 'delay'
    job.run_at, job.followed = item.run_at, item.run_at and (meta.offset or 0)
  elseif job.session then
    promote_session(job.session)
  end
  job.id = int(next_number())
  if job.state == 'waiting' then
    append(job)
  else
    SOON = true  -- a worker may be sleeping until a later time
  end
  insert(job, item.payload)
  return job.id
end

-- Arguments: the instance, the step's number, the room, whether it was asked before the last had its
-- answer, so that the room has nothing of what that has left; FINISH_FIELDS for each finish.
-- Answer: the claims, the stale fences, (id, fence) of cancelled runs, when something falls due.
function WRITES.step(arguments)
  local instance, number, room = arguments[1], tonumber(arguments[2]), tonumber(arguments[3])
  local stale, finished = {}, false
  if not is_alive(instance) then
    for at = 5, #arguments, FINISH_FIELDS do
      stale[#stale + 1] = tonumber(arguments[at + 1])
    end
    return { 0, {}, stale, {}, false }
  end
  local last = last_step(instance)
  if number <= last.number then
    return step_again(instance, number, last)
  end
  local ids, info = {}, instance_of(instance)
  for at = 5, #arguments, FINISH_FIELDS do
    ids[#ids + 1] = arguments[at]
  end
  find_all(ids)
  for at = 5, #arguments, FINISH_FIELDS do
    if not finish(arguments, at, info) then
      stale[#stale + 1] = tonumber(arguments[at + 1])
    end
    finished = true
  end
  local first = promote()
  forget_done()
  forget_lanes()
  local after = next_number()
  local claims, due, unfinished = Claims.take(instance, info, room)
  local left = room - #claims
  room = left + (arguments[4] == '1' and last.left or 0)
  put_last_step(instance, { number = number, after = after, stale = stale, left = left, room = room })
  -- this instance has claimed already; what is left is for others, unless nothing has changed
  LOOK = LOOK or finished or #claims > 0 or (last.room or 0) > room and room == 0
  if LOOK then
    wake(true)
    LOOK, SOON = false, false
  end
  CALLER_LOOKS = CALLER_LOOKS or unfinished
  local is_idle = not unfinished and left > 0
  call(is_idle and 'SADD' or 'SREM', ROOT .. 'idle:' .. info.kind, instance)
  return { 0, claims, stale, cancels(instance), next_due(math.min(first, due or huge)) }
end

LISTED.step = true

-- Forget, now and then, what is kept of lanes of templates that have no jobs any more.
function forget_lanes()
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
  forget_turns()
end

-- The claims of the last step are the instance's runs whose fences are above `after`.
function step_again(instance, number, last)
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
  return { 0, claims, last.stale, cancels(instance), next_due(first) }
end

function cancels(instance)
  local found = {}
  for _, id in ipairs(ask('ZRANGE', ROOT .. 'x:' .. instance, 0, -1)) do
    found[#found + 1] = id
    found[#found + 1] = find(id).fence
  end
  return found
end

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

-- Return whether the fence is still the run's.
function finish(arguments, at, info)
  local job = running_of(arguments[at], tonumber(arguments[at + 1]))
  if job then
    FINISH[arguments[at + 2]](job, read_finish(arguments, at))
    if info.affinity > 0 and arguments[at + 2] ~= 'r' then
      note_home(job)
    end
  end
  return job ~= nil
end

-- A refusal, if the job that has the key differs from the item; else nil.
function compare(item, job)
  for _, field in ipairs({ 'name', 'session', 'lane', 'digest' }) do
    if item[field] ~= job[field] then
      local id = job.id or '0'
      return { 1, 'key', item.key, id, field == 'digest' and 'payload' or field }
    end
  end
end
