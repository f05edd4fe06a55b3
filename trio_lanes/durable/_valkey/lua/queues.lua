-- Queues of sessions and ready lists of lanes: the rules of order.
--
-- The invariants are those of the engine over tables (`trio_lanes.durable._rules.engine`). The head of a
-- session's queue keeps its place while it runs and between attempts. A ready list holds heads, and jobs
-- without a session.

-- Functions that are called before the place that they have in queues.py, too.
local set_ready, _crash, promote_session, _promote, resume_session, is_expired

local function head_of(session)
  local first = queue_size(session) > 0 and ask('ZRANGE', ROOT .. 's:' .. session, 0, 0)[1]
  return first and find(first) or nil
end

local function pause_of(session)
  local paused = first_time('pauses') and call('ZSCORE', ROOT .. 'pauses', session)
  return paused and number_of(paused) or nil
end

-- Put a job at the tail of its session's queue. The caller puts the record.
local function append(job)
  if job.session then
    local behind = queue_size(job.session) > 0
    job.place = next_number()
    if behind then
      return
    end
  end
  set_ready(job)
end

-- Give a head its place on the ready list. The caller puts the record.
function set_ready(job, first)
  local number, shelf = next_number(), nil
  if job.session then
    local paused = pause_of(job.session)
    if paused and paused > now then
      shelf = true
    end
  end
  if not first and not shelf then
    shelf = fair.join(job)
  end
  job.ready, job.shelf = first and -number or number, shelf
  LOOK = true
end

local function list_ready(job, first)
  set_ready(job, first)
  put(job)
end

-- Put the head of a session's queue on the ready list, if it is new as head.
local function list_next_head(session)
  local head = session and head_of(session)
  if head and head.state == 'waiting' and not head.ready then
    if not head.due then  -- its wait for the session is over
      head.due, head.why = now, 'session'
    end
    list_ready(head)
  end
end

-- Delete the messages to a job that its run, which ends, has not taken, and tell their senders.
local function drop_untaken(job)
  local key = ROOT .. 'm:' .. job.id
  local all = call('HGETALL', key)
  for at = 1, #all, 2 do
    if not cmsgpack.unpack(all[at + 1]).taken then
      call('HDEL', key, all[at])
    end
  end
  tell_news(job)
end

-- End a run: in the history, and for its messages.
local function leave(job, how, failure)
  if job.sent then
    drop_untaken(job)
  end
  ended(job, how, failure)
end

-- Count an end of a job under its lane, or under the template of that; nothing takes it away.
local function count_end(job)
  count(ROOT .. 'ends', job.state .. ':' .. (label_of(lanes(), job.lane) or job.lane), 1)
end

-- `failure`: of a run that failed, {the type of its error, the error in one line}.
local function end_job(job, state, outcome, attempt, failure)
  if job.party then
    fair.leave(job)
  elseif job.state == 'running' then
    leave(job, state, failure and failure[2])
  end
  job.state = state
  count_end(job)
  job.attempts = (job.attempts or 0) + (attempt or 0)
  job.place, job.ready, job.shelf, job.why = nil, nil, nil, nil
  job.expires, job.coalesce = nil, nil
  job.due = now + rules().result_ttl
  if state ~= 'failed' then  -- a failed job can be requeued until the store forgets it
    delete_text(ROOT .. 'p:' .. job.id)
    if job.kept then
      delete_text(ROOT .. 'c:' .. job.id)
      job.kept = nil
    end
  else
    job.error = failure[1]
  end
  put_text(ROOT .. 'o:' .. job.id, outcome)
  put(job)
  tell_ended(job, outcome)
  list_next_head(job.session)
end

-- Make a job dead. With the rule `hold` it keeps its place, which closes its session.
local function mark_dead(job, outcome, attempt, failure, how)
  leave(job, how or 'dead', failure[2])
  job.state = 'dead'
  count_end(job)
  job.attempts = (job.attempts or 0) + attempt
  if not (rules().hold and job.session) then
    job.place = nil
  end
  job.error, job.coalesce = failure[1], nil
  put_text(ROOT .. 'o:' .. job.id, outcome)
  put(job)
  tell_ended(job, outcome)
  list_next_head(job.session)
end

-- Put a running job back to waiting, at the front of the ready list.
local function give_back(job, how)
  if job.cancel then
    end_job(job, 'cancelled', job.cancel)
  else
    leave(job, how or 'released')
    job.state, job.lent = 'waiting', nil
    list_ready(job, true)
  end
end

-- Give back the jobs that a process ran when it died; the last claimed first, since each goes to the
-- front. A run that has lent its slot waits for other jobs, so it is not counted beside them.
local function crash(ids)
  local holding = 0
  for _, id in ipairs(ids) do
    if find(id).lent ~= 1 then
      holding = holding + 1
    end
  end
  for at = #ids, 1, -1 do
    local job = find(ids[at])
    _crash(job, job.lent == 1 and #ids or holding)
  end
end

-- Give back a job whose process died while it ran `crashed_with` jobs, this one included. Only crashes in
-- which the job ran alone make it dead.
function _crash(job, crashed_with)
  job.crashes = (job.crashes or 0) + 1
  if crashed_with == 1 then
    job.crashes_alone = (job.crashes_alone or 0) + 1
  end
  job.crashed_with = math.min(job.crashed_with or crashed_with, crashed_with)
  local alone = job.crashes_alone or 0
  if not job.cancel and alone >= rules().max_crashes then
    local times = alone == 1 and 'once' or alone .. ' times'
    local message = 'the process ended, or did not answer for longer than its lease, while it ran this'
      .. ' job alone, ' .. times .. '; is the handler blocking?'
    local outcome = '{"type": "crash", "message": "' .. message .. '", "traceback": ""}'
    mark_dead(job, outcome, 0, { 'crash', 'crash: ' .. message }, 'crashed')
  else
    give_back(job, 'crashed')
  end
end

local function postpone(job, delay, counts, requeue, failure)
  if job.cancel then
    end_job(job, 'cancelled', job.cancel)
    return
  end
  leave(job, 'retried', failure)
  local leaves = requeue and job.session
  job.state, job.why, job.due = 'parked', 'retry', now + delay
  job.attempts = (job.attempts or 0) + (counts and 1 or 0)
  job.crashed_with, job.lent = nil, nil
  if leaves then
    job.place = nil
  end
  put(job)
  if leaves then
    list_next_head(job.session)
  end
end

-- How many jobs an instance may run while it runs this one. It is infinite, but for a suspect: a job
-- that its next crash could make dead.
local function max_runs_with(job)
  if not job.crashed_with or (job.crashes or 0) < math.max(1, rules().max_crashes - 1) then
    return huge
  end
  return math.max(1, math.floor(job.crashed_with / 2))
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

local function resume_sessions(sessions)
  for _, session in ipairs(sessions) do
    resume_session(session)
  end
end

-- Do with the members of an index whose time has come. Return the time of the first that is left.
local function do_due(name, act)
  if (first_time(name) or huge) <= now then
    act(ask('ZRANGEBYSCORE', ROOT .. name, '-inf', now, 'LIMIT', 0, BATCH))
  end
  return first_time(name) or huge
end

-- Queue the parked jobs that are due; end the jobs that have expired, and the pauses that are over.
-- Return when the next of these falls due.
local function promote()
  return math.min(do_due('due', _promote), do_due('pauses', resume_sessions))
end

-- Queue the due jobs of a session, before another job joins the queue.
function promote_session(session)
  if (first_time('due') or huge) > now then
    return
  end
  local key = ROOT .. 'sd:' .. session
  local due = ask('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, BATCH)
  while #due > 0 do
    _promote(due)
    due = ask('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, BATCH)
  end
end

-- Queue a parked job, behind the due jobs of its session.
local function promote_one(job)
  if job.session then
    promote_session(job.session)
  end
  if job.state == 'parked' then  -- else it was due
    _promote({ job.id })
  end
end

function _promote(ids)
  for _, id in ipairs(ids) do
    local job = find(id)
    if is_expired(job) then
      end_job(job, 'expired', '{}')
    end
  end
  for _, id in ipairs(ids) do
    local job = find(id)
    if job.state == 'parked' then
      if job.place then
        set_ready(job)
      else
        append(job)
      end
      job.state, job.due = 'waiting', math.min(job.due, now)  -- until when it was parked
      put(job)
    end
  end
end

function resume_session(session)
  call('ZREM', ROOT .. 'pauses', session)
  FIRSTS.pauses = nil
  local head = head_of(session)
  if head and head.shelf == true and head.ready then
    head.shelf = nil
    if head.ready >= 0 and fair.weights_of(head.lane) then
      set_ready(head)  -- its owner may have other jobs, and has gone on
    end
    put(head)
    LOOK = true
  end
end

-- Microseconds until the time `first`, or until the pause of a lane ends before; false: nothing will.
local function next_due(first)
  for _, lane in pairs(lanes()) do
    if is_paused(lane) then
      first = math.min(first, lane.paused_until)
    end
  end
  return first < huge and math.max(0, first - now)
end

-- Whether the store has forgotten a job, or the next step will.
local function is_over(job)
  return ENDED[job.state] and job.due <= now
end

-- Whether the time for a job to begin is over; the next step ends it.
function is_expired(job)
  return job.expires and job.expires <= now
end

local function known(id)
  local job = find(id)
  if job and not is_over(job) then
    return job
  end
end

local function running_of(id, fence)
  local job = find(id)
  if job and job.state == 'running' and job.fence == fence then
    return job
  end
end

local function is_alive(instance)
  local ends = call('ZSCORE', ROOT .. 'in', instance)
  return ends and tonumber(ends) > now
end

-- The job of a run, if the instance has a lease, and the fence is still the run's.
local function run_of(instance, id, fence)
  if is_alive(instance) then
    return running_of(id, tonumber(fence))
  end
end

-- The job that runs in a session, which is the head of its queue.
local function running_in(session)
  local head = head_of(session)
  return head and head.state == 'running' and head or nil
end
