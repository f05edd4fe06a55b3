-- Instances and their leases: the sorted set `in` has the end of each lease, i:<instance> what the
-- incarnation has joined with, st:<instance> its last step.
--
-- A lease that is over never comes back. Time in which no instance could reach the store does not
-- count (`move_leases`): else the first to return would bury the others, which are well.

local REAPED_AT_ONCE = 10

local function runs_of(instance)
  return ask('ZRANGE', ROOT .. 'run:' .. instance, 0, -1)
end

-- The server has restarted, or the caller had no answer for some time.
local function move_leases()
  local gap = now - (meta.clock or now)
  if gap > 0 then
    for _, instance in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
      call('ZINCRBY', ROOT .. 'in', gap, instance)
    end
  end
end

-- The server's clock was set: the jobs with a time of the wall clock follow it, some in each call.
local function follow_clock()
  local key, offset = ROOT .. 'at', '(' .. int(meta.offset)
  local ids = ask('ZRANGEBYSCORE', key, '-inf', offset, 'LIMIT', 0, AT_ONCE)
  if #ids == 0 then
    ids = ask('ZRANGEBYSCORE', key, offset, '+inf', 'LIMIT', 0, AT_ONCE)
  end
  if #ids == 0 then
    call('HDEL', META, 'follow')
    return
  end
  find_all(ids)
  for _, id in ipairs(ids) do
    local job = find(id)
    job.due, job.followed = job.run_at + meta.offset, meta.offset
    put(job)
  end
  SOON, CALLER_LOOKS = true, true
end

-- Called before the first act that changes something.
local function begin_writing()
  if (meta.run and meta.run ~= RUN) or AWAY > 0 then
    move_leases()
  end
  if meta.run ~= RUN or not meta.seq then
    LAST_BEFORE = math.max(now, LAST_BEFORE)
    LAST, RESERVED, meta.run = LAST_BEFORE, LAST_BEFORE, RUN
    call('HSET', META, 'run', RUN)
  end
  call('HSET', META, 'clock', now, 'offset', meta.offset or 0, 'seq', reserve_numbers())
  if WAS_SET then
    call('HSET', META, 'follow', 1)
  end
  if WAS_SET or meta.follow then
    follow_clock()
  end
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

local function drop_instance(id)
  for _, request in ipairs(members(ROOT .. 'ki:' .. id)) do
    LINES.release(request, true)
  end
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

-- End an incarnation: its runs are given back with a crash. It can be repeated.
local function remove_instance(id)
  crash(runs_of(id))
  drop_instance(id)
  LOOK = true
end

local function reap(instance)
  local over = call('ZRANGEBYSCORE', ROOT .. 'in', '-inf', now, 'LIMIT', 0, REAPED_AT_ONCE)
  for _, id in ipairs(over) do
    if id ~= instance then
      remove_instance(id)
    end
  end
end

-- Put a dead or failed job back to waiting: in its old place if it kept that, else at the tail.
local function revive(job)
  local held = job.place ~= nil
  if not held then
    if job.session then
      promote_session(job.session)
    end
    append(job)
  end
  job.state, job.error = 'waiting', nil
  delete_text(ROOT .. 'o:' .. job.id)
  put(job)
  if held then
    list_next_head(job.session)
  end
end

-- Take back the crash of a run that ended because its lease was lost.
local function forgive(id, fence)
  local job = find(id)
  if not job or ENDED[job.state] or not forgive_run(job, fence) then
    return
  end
  job.crashes = math.max(0, (job.crashes or 0) - 1)
  if job.company == 1 then
    job.alone = (job.alone or 0) - 1
  end
  job.company = nil
  put(job)
  if job.fence == fence and job.state == 'dead' then  -- this crash made it dead
    revive(job)
  end
end

-- Arguments: the instance, then the microseconds of its lease. Answer: whether it has its lease.
local function beat(arguments)
  local instance = arguments[1]
  if not is_alive(instance) then
    return { 0, 0 }
  end
  call('ZADD', ROOT .. 'in', now + tonumber(arguments[2]), instance)
  reap(instance)
  return { 0, 1 }
end

-- The last step of an instance: {number, after, stale}. `after`: the fences of its claims are above;
-- `stale`: the fences that it refused.
local function last_step(instance)
  return cmsgpack.unpack(text_of(ROOT .. 'st:' .. instance))
end

local function put_last_step(instance, step)
  put_text(ROOT .. 'st:' .. instance, cmsgpack.pack(step))
end

-- Arguments: the incarnation, microseconds of its lease, the former one, host, pid, kind, the number
-- of lost runs and the id and fence of each, the number of held fences and these, the handlers.
local function join(arguments)
  local instance, ttl, former = arguments[1], tonumber(arguments[2]), arguments[3]
  local at = 7
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
    host = arguments[4], pid = arguments[5], kind = arguments[6], names = {}, channel = CHANNEL,
    since = now,
  }
  for place = at + 1, #arguments do
    info.names[#info.names + 1] = arguments[place]
  end
  put_instance(instance, info)
  put_last_step(instance, { number = 0, after = 0, stale = {} })
  call('ZADD', ROOT .. 'in', now + ttl, instance)
  call('HSET', ROOT .. 'kinds', info.kind, cmsgpack.pack(info.names))
  reap(instance)
  LOOK, CALLER_LOOKS = true, true
  return { 0 }
end

-- Arguments: the instance, the fences of its runs whose ends are not recorded. The server may have
-- older data: what it has besides is given back. Answer: the fences of which it knows nothing.
local function compare_runs(arguments)
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

local function leave(arguments)
  remove_instance(arguments[1])
  return { 0 }
end

-- Arguments: the host and the pid of a process that has ended.
local function declare_dead(arguments)
  for _, id in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    local info = instance_of(id)
    if info.host == arguments[1] and info.pid == arguments[2] then
      remove_instance(id)
    end
  end
  return { 0 }
end

WRITES.beat = beat
WRITES.leave = leave
WRITES.declare_dead = declare_dead
WRITES.compare_runs = compare_runs
WITH_TICKET.join = join
