-- What instances do: they keep a lease, accept jobs, and finish and claim jobs in steps.
--
-- The sorted set `in` has the end of each lease, i:<instance> what the incarnation has joined with,
-- st:<instance> its last step. A lease that is over never comes back.

local MAX_REAPED = 10
local FINISH_FIELDS = 8
local FORGET_LANES_EVERY = 60 * SECOND

-- Functions that are called before the place that they have in engine.py, too.
local reap, forgive, remove_instance, drop_instance, accept, forget_lanes, step_again, fires, cancels
local finish, gives_key_up, job_to_join, join_job, compare

local NO_MORE = {}

local function runs_of(instance)
  return ask('ZRANGE', ROOT .. 'run:' .. instance, 0, -1)
end

-- A set of the members of a list.
local function set_of(list)
  local set = {}
  for _, member in ipairs(list) do
    set[member] = true
  end
  return set
end

-- `asked`: JSON {former, host, pid, kind, names, affinity, lost, held}: the former incarnation, id and
-- fence of each lost run, the fences that are held.
function WITH_TICKET.join(instance, ttl, asked)
  asked = cjson.decode(asked)
  for _, run in ipairs(asked.lost) do
    forgive(unpack(run))
  end
  local ids, held = runs_of(asked.former), set_of(asked.held)
  for place = #ids, 1, -1 do
    local job = find(ids[place])
    if held[job.fence] then
      job.instance = instance
      put(job)
    else
      give_back(job)
    end
  end
  drop_instance(asked.former)
  local info = {
    host = asked.host, pid = asked.pid, kind = asked.kind, names = asked.names,
    handles = set_of(asked.names), channel = CHANNEL, since = now, affinity = asked.affinity,
    lease_ttl = tonumber(ttl),
  }
  put_instance(instance, info)
  put_last_step(instance, { number = 0, after = 0, stale = {} })
  call('ZADD', ROOT .. 'in', now + tonumber(ttl), instance)
  call('HSET', ROOT .. 'kinds', info.kind, cmsgpack.pack(info.names))
  local given_up = reap(instance)
  LOOK, CALLER_LOOKS = true, true
  return { 0, json(given_up) }
end

-- Answer: whether the instance has its lease, and the instances that it has given up.
function WRITES.beat(instance, ttl)
  if not is_alive(instance) then
    return { 0, 0, '[]' }
  end
  call('ZADD', ROOT .. 'in', now + tonumber(ttl), instance)
  return { 0, 1, json(reap(instance)) }
end

-- The instances that were removed, as they were.
function reap(instance)
  local over = call('ZRANGEBYSCORE', ROOT .. 'in', '-inf', now, 'LIMIT', 0, MAX_REAPED, 'WITHSCORES')
  local given_up = {}
  for at = 1, #over, 2 do
    local id = over[at]
    if id ~= instance then
      given_up[#given_up + 1] = info_of(id, over[at + 1])
      remove_instance(id)
    end
  end
  return given_up
end

-- Take back the crash of a run that ended because its lease was lost.
function forgive(id, fence)
  local job = find(id)
  if not job or ENDED[job.state] or not forgiven(job, fence) then
    return
  end
  job.crashes = math.max(0, (job.crashes or 0) - 1)
  if job.crashed_with == 1 then
    job.crashes_alone = (job.crashes_alone or 0) - 1
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

function WRITES.leave(instance)
  remove_instance(instance)
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
    more = arguments[at + 11] ~= '' and cjson.decode(arguments[at + 11]) or NO_MORE,
  }
end

local function refusal(items)
  local keyed_here, coalesced_here, fresh = {}, {}, {}
  for _, item in ipairs(items) do
    local lane = limit_of(item.lane)
    if not lane then
      return unknown_lane(item.lane)
    end
    local same = item.key and (keyed_here[item.key] or keyed(item.key))
    if same and same.id and gives_key_up(same, item) then
      same = nil
    end
    local key = item.more.coalesce
    if key then
      same = coalesced_here[key] or job_to_join(item)
    end
    local differs = same and compare(item, same)
    if differs then
      return differs
    end
    if item.cost and (key or not same) then
      local refused = Budget.new():check_units(item.lane, item.cost)
      if refused then
        return refused
      end
    end
    if not same then
      if item.key then
        keyed_here[item.key] = item
      end
      if key then
        coalesced_here[key] = item
      end
      if lane.max_waiting < huge then
        fresh[item.lane] = (fresh[item.lane] or 0) + 1
        if ask('ZCARD', ROOT .. 'w:' .. item.lane) + fresh[item.lane] > lane.max_waiting then
          return { 1, 'full', item.lane, lane.max_waiting }
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
    if same and not gives_key_up(same, item) then
      tell(CHANNEL, same.id)  -- that it asks for the end of this job: another client may have submitted it
      return same.id
    elseif same and is_over(same) then
      forget(same)
    elseif same then
      if is_expired(same) then
        end_job(same, 'expired', '{}')
      end
      same.key = nil
      put(same)
    end
  end
  local key = item.more.coalesce
  if key then
    local joined = job_to_join(item)
    if joined then
      if not joined.fence then
        join_job(joined, item)
      end
      tell(CHANNEL, joined.id)
      return joined.id
    end
    local over = coalesced(key, false)
    if over then
      end_job(over, 'expired', '{}')
    end
  end
  local job = {
    name = item.name, lane = item.lane, session = item.session, priority = item.priority,
    key = item.key, digest = item.digest, submitted_at = now, submitter = CHANNEL,
    coalesce = key, state = 'waiting', cost = item.cost, owner = item.more.owner,
    rest = item.rest ~= '' and item.rest or nil,
  }
  if item.delay > 0 then
    job.state, job.due, job.why = 'parked', now + item.delay, 'delay'
    job.run_at, job.followed = item.run_at, item.run_at and (meta.offset or 0)
  elseif job.session then
    promote_session(job.session)
  end
  job.expires = item.more.expires and now + item.more.expires
  job.id = int(next_number())
  if job.state == 'waiting' then
    append(job)
  end
  if job.state == 'parked' or job.expires then
    SOON = true  -- a worker may be sleeping until a later time
  end
  insert(job, item.payload)
  return job.id
end

-- Whether a job leaves its key to a further submission, which begins anew.
function gives_key_up(job, item)
  return item.more.anew and (WITHOUT_RESULT[job.state] or is_expired(job)) or is_over(job)
end

-- The job that a submission with a key to coalesce joins; nil: it becomes a job.
function job_to_join(item)
  local waiting = coalesced(item.more.coalesce, false)
  if waiting and not is_expired(waiting) then
    return waiting
  end
  return item.more.drops and coalesced(item.more.coalesce, true) or nil
end

-- Let a job that waits stand for a further submission, too.
function join_job(job, item)
  if item.more.latest then
    put_text(ROOT .. 'p:' .. job.id, item.payload)
    PAYLOADS[job.id] = nil
    job.cost, job.rest = item.cost, item.rest ~= '' and item.rest or nil
    job.expires = item.more.expires and now + item.more.expires
    if job.priority ~= item.priority then
      local ready = job.ready
      if job.party then
        fair.leave(job, false)
      end
      job.priority, job.ready = item.priority, nil
      if ready then
        set_ready(job)
      end
    end
  end
  if job.state == 'parked' then
    local most = job.submitted_at + (item.more.max_wait or huge)
    job.due = math.max(now, math.min(now + item.delay, most))
  end
  put(job)
  LOOK, SOON = true, true  -- it may start earlier than a worker knows
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
    return { 0, {}, stale, {}, false, false }
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
    if not finish(info, unpack(arguments, at, at + FINISH_FIELDS - 1)) then
      stale[#stale + 1] = tonumber(arguments[at + 1])
    end
    finished = true
  end
  local first = promote()
  forget_done()
  forget_lanes()
  local after = next_number()
  -- what has expired never starts: with very many due jobs, the next steps claim
  local claims, due, unfinished = Claims.take(instance, info, first > now and room or 0)
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
  return { 0, claims, stale, cancels(instance), next_due(math.min(first, due or huge)), fires() }
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
  for name, limit in pairs(lanes()) do
    if limit.pause_only and (limit.paused_until or 0) <= now then
      put_lane(name, nil)
    end
  end
  forget_turns()
  forget_holds()
end

-- The claims of the last step are the instance's runs whose fences are above `after`.
function step_again(instance, number, last)
  if number < last.number then
    return { 0, {}, {}, {}, false, false }
  end
  local claims = {}
  local after = '(' .. int(last.after)
  for _, id in ipairs(ask('ZRANGEBYSCORE', ROOT .. 'run:' .. instance, after, '+inf')) do
    claims[#claims + 1] = claim_of(find(id))
  end
  local first = math.min(first_time('due') or huge, first_time('pauses') or huge)
  CALLER_LOOKS = true  -- a limit that keeps jobs from starting is found by the next step
  return { 0, claims, last.stale, cancels(instance), next_due(first), fires() }
end

-- In how many microseconds a schedule falls due; false: none does.
function fires()
  return meta.fires and math.max(0, meta.fires + (meta.offset or 0) - now) or false
end

function cancels(instance)
  local found = {}
  for _, id in ipairs(ask('ZRANGE', ROOT .. 'x:' .. instance, 0, -1)) do
    found[#found + 1] = id
    found[#found + 1] = find(id).fence
  end
  return found
end

-- By kind, what ends a run: with a text, whether an attempt counts, whether the job leaves its place, and
-- the failure, {the type of the error, the error in one line}.
local FINISH = {
  s = function(job, text) end_job(job, 'succeeded', text, 1) end,
  f = function(job, text, _, _, failure) end_job(job, 'failed', text, 1, failure) end,
  d = function(job, text, _, _, failure) mark_dead(job, text, 1, failure) end,
  p = function(job, text, counts, leaves, failure)
    local line = failure[2] ~= '' and failure[2] or nil
    postpone(job, tonumber(text), counts == '1', leaves == '1', line)
  end,
  r = function(job) give_back(job) end,
  c = function(job) end_job(job, 'cancelled', job.cancel or '{}') end,
}

-- Return whether the fence is still the run's.
function finish(info, id, fence, kind, text, counts, leaves, ...)
  local job = running_of(id, tonumber(fence))
  if job then
    FINISH[kind](job, text, counts, leaves, { ... })
    if info.affinity > 0 and kind ~= 'r' then
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
      return { 1, 'key', item.key or item.more.coalesce, id, field == 'digest' and 'payload' or field }
    end
  end
end
