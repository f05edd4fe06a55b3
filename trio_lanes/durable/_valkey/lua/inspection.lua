-- Inspection: acts that change nothing, the wait for the end of a job, and the check of consistency, in
-- pages: a page of jobs against the rules and the indexes, and of each index of runs against its jobs.

local SHOWN = 100

-- Functions that are called before the place that they have in inspection.py, too.
local _status_of, texts_of, levels, checked, wrong_with

local function shown_limit(name, limit)
  local paused = limit.paused
  return {
    name, limit.c and int(limit.c) or false, limit.m and int(limit.m) or false,
    paused and (paused == huge and 'inf' or int(paused)) or false, limit.proposed and 1 or 0,
    limit.rates,
  }
end

function READS.all_lanes()
  local answer = { 0 }
  local all, names = lanes()
  for _, name in ipairs(names) do
    if is_configured(all, name) then
      answer[#answer + 1] = shown_limit(name, all[name])
    end
  end
  return answer
end

-- A table as an answer can have it: {key, value, key, value...}.
local function pairs_of(of)
  local flat = {}
  for key, value in pairs(of) do
    flat[#flat + 1] = key
    flat[#flat + 1] = value
  end
  return flat
end

function READS.all_groups()
  local answer = { 0 }
  for name, group in pairs((groups())) do
    local most = group.c and int(group.c) or false
    answer[#answer + 1] = { name, group.members, most, pairs_of(group.reserve), group.rates }
  end
  return answer
end

local function shown_number(number)
  return number == huge and 'inf' or int(number)
end

function READS.all_rules()
  local all = rules()
  return {
    0, shown_number(all.result_ttl), shown_number(all.max_crashes), all.hold and 1 or 0,
  }
end

function READS.all_instances()
  local answer = { 0 }
  local flat = call('ZRANGE', ROOT .. 'in', 0, -1, 'WITHSCORES')
  for at = 1, #flat, 2 do
    local info = instance_of(flat[at])
    local runs, of_lanes = ask('ZRANGE', ROOT .. 'run:' .. flat[at], 0, PAGE - 1), {}
    find_all(runs)
    for _, id in ipairs(runs) do
      local lane = find(id).lane
      of_lanes[lane] = (of_lanes[lane] or 0) + 1
    end
    answer[#answer + 1] = {
      flat[at], info.host, info.pid, int(info.since), flat[at + 1], info.names,
      ask('ZCARD', ROOT .. 'run:' .. flat[at]), pairs_of(of_lanes), is_alive(flat[at]) and 1 or 0,
    }
  end
  return answer
end

-- Answer: the oldest jobs that have not ended, with their
-- payloads, of which there are at most STEP_BYTES.
function READS.queue_of(session, limit)
  local of = { states = ' waiting  parked  running ', session = session }
  local answer, size = { 0 }, 0
  local most = math.min(tonumber(limit), PAGE)
  for _, job in ipairs(most > 0 and page_of(of, '0', most) or {}) do
    size = size + bytes_of(job)
    if #answer > 1 and size > STEP_BYTES then
      break
    end
    local begun = (job.attempts or 0) > 0 or (job.crashes or 0) > 0 or job.kept
    answer[#answer + 1] = {
      job.id, job.name, job.key or false, job.state, payload_of(job),
      begun and 1 or 0, int(math.max(0, now - job.submitted)),
    }
  end
  return answer
end

-- `texts`: whether to answer what the job carries as well.
function READS.status_of(id, texts)
  local job = known(id)
  if not job then
    return { 0, false }
  end
  return { 0, _status_of(job), texts == '1' and texts_of(job) or nil }
end

-- Answer: the state and the outcome of a job that has ended or is dead; only 0 if it has not, and the
-- caller hears of it when it does; false if it is unknown.
function WRITES.wait(id)
  local job = known(id)
  if not job then
    return { 0, false }
  end
  if ENDED[job.state] or job.state == 'dead' then
    return { 0, job.state, text_of(ROOT .. 'o:' .. job.id) }
  end
  listen_to(job)
  return { 0 }
end

-- The status of the job that runs in a session.
function READS.running_in(session)
  local job = running_in(session)
  return { 0, job and _status_of(job) or false }
end

-- Arguments: a selection, the id after which, how many at most. Answer: the statuses, and the id
-- after which the next page begins; false: there are no more.
function READS.jobs_of(arguments)
  local most = tonumber(arguments[SELECTION + 2])
  local found, after = page_of(read_selection(arguments), arguments[SELECTION + 1], most)
  for at, job in ipairs(found) do
    found[at] = _status_of(job)
  end
  return { 0, found, after }
end

LISTED.jobs_of = true

-- The lanes that are there, with their limits: those that are configured, and lanes of templates
-- while they have jobs or a pause.
local function present_lanes(counts)
  local all, present, answer = lanes(), {}, {}
  for name, limit in pairs(all) do
    present[name] = not limit.pause_only or (limit_of(name) and is_paused(limit_of(name)))
  end
  for _, count in ipairs(counts) do
    present[count[2]] = true
  end
  for name, is in pairs(present) do
    local limit = is and limit_of(name)
    if limit then
      answer[#answer + 1] = shown_limit(name, limit)
    end
  end
  table.sort(answer, function(one, other)
    return one[1] < other[1]
  end)
  return answer
end

-- Each request for a lock or a quota: {whether for a quota, name, instance, job, since, served}.
local function all_requests()
  local found = {}
  for _, instance in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    for _, request in ipairs(lines.of_instance(instance)) do
      found[#found + 1] = {
        tonumber(request.id), request.costs and 1 or 0, lines.name_of(request), instance,
        request.job or '', request.since or false, request.served ~= '0' and 1 or 0,
      }
    end
  end
  return found
end

-- Answer: the identity; counts of {state, lane, name, number}; sessions; sessions by lane; the names
-- of live instances' handlers; the lanes that are there; the time; paused sessions and until when; the
-- requests for locks and quotas; the quotas.
function READS.all_statistics()
  local counts, by_lane, handled = all_counts(), {}, {}
  local present = present_lanes(counts)
  for _, limit in ipairs(present) do
    by_lane[#by_lane + 1] = limit[1]
    by_lane[#by_lane + 1] = call('HLEN', ROOT .. 'sl:' .. limit[1])
  end
  for _, id in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    for _, name in ipairs(instance_of(id).names) do
      handled[#handled + 1] = name
    end
  end
  return {
    0, call('HGET', META, 'identity'), counts, tonumber(call('HGET', META, 'sessions') or 0),
    by_lane, handled, present, int(now), call('ZRANGE', ROOT .. 'pauses', 0, -1, 'WITHSCORES'),
    all_requests(), levels(),
  }
end

-- Answer: the problems, the id after which the next page begins.
function WRITES.check(after)
  local problems, _, last = checked(after, false)
  return { 0, problems, last }
end

-- The same; the answer begins with how many were repaired.
function WITH_TICKET.repair(after)
  local _, fixed, last = checked(after, true)
  return { 0, fixed, last }
end

function _status_of(job)
  local running, error, due, why = job.state == 'running', false, job.due, job.why
  if job.state == 'waiting' and not job.ready and not due then
    due, why = now, 'session'  -- as `list_next_head` will write it
  end
  if job.state == 'dead' or job.state == 'failed' then
    error = text_of(ROOT .. 'o:' .. job.id)
  end
  return {
    job.id, job.name, job.session or false, job.lane, job.priority, job.key or false, job.state,
    why or false, job.state == 'parked' and int(job.due), (job.attempts or 0) + (running and 1 or 0),
    job.crashes or 0, running and job.instance, running and job.cancel and 1 or 0, error,
    int(job.submitted), attempts(job), job.rest or false, int(now),
    due and int(due) or false,
  }
end

-- The last messages to a job: numbers, whether taken, texts.
local function last_messages(job)
  local found, flat = {}, call('HGETALL', ROOT .. 'm:' .. job.id)
  for at = 1, #flat, 2 do
    local number, message = tonumber(flat[at]), cmsgpack.unpack(flat[at + 1])
    if number > job.sent - SHOWN then
      found[#found + 1] = { number, message.taken and 1 or 0, message.text }
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end

-- What a job carries: payload, checkpoint data, outcome, the number of the last event, events, messages.
function texts_of(job)
  return {
    text_of(ROOT .. 'p:' .. job.id) or false, text_of(ROOT .. 'c:' .. job.id) or false,
    text_of(ROOT .. 'o:' .. job.id) or false, job.emitted or 0,
    call('LRANGE', ROOT .. 'e:' .. job.id, -SHOWN, -1), job.sent and last_messages(job) or {},
  }
end

-- Each quota from which something was spent: {name, limits, and of each limit what is in use, and when
-- it is fully replenished}.
function levels()
  local found, flat = {}, call('HGETALL', ROOT .. 'qu')
  for at = 1, #flat, 2 do
    local of_limits, known = {}, cmsgpack.unpack(flat[at + 1])
    for place, meter in ipairs(cjson.decode(known[2])) do
      local used, refilled_at = rates.used(rates.key_of('quota:' .. named(flat[at]), meter), meter)
      of_limits[place] = { int(used), used > 0 and int(refilled_at) }
    end
    found[#found + 1] = { flat[at], known[1], of_limits }
  end
  return found
end

local function is_head(job)
  return not job.session or (job.place and head_of(job.session).id == job.id)
end

local function missing_from(job)
  for key, score in pairs(indexes(job)) do
    if tonumber(ask('ZSCORE', key, job.id) or nil) ~= score then
      return key
    end
  end
end

local function check_job(job, repair, problems)
  local function add(text)
    problems[#problems + 1] = 'job ' .. job.id .. ' ' .. text
  end
  local fixed = 0
  local key = missing_from(job)
  if key then
    add('is not in its place in ' .. key)
    if repair then
      WAS[job.id].at = {}
      put(job)
      read_again()
      fixed = fixed + 1
    end
  end
  if ENDED[job.state] then
    return fixed
  end
  local wrong = wrong_with(job)
  if job.state == 'running' and call('EXISTS', ROOT .. 'i:' .. job.instance) == 0 then
    add('runs on an instance that is not in the store')
    if repair and is_head(job) then
      crash({ job.id })
      fixed = fixed + 1
    end
  end
  if not label_of(lanes(), job.lane) then
    add('is for lane ' .. job.lane .. ', which is not in the store')
  end
  if wrong then
    add(wrong)
    if repair then
      job.ready, job.shelf = nil, nil
      put(job)
      if job.state == 'waiting' and is_head(job) then
        list_ready(job)
      end
      fixed = fixed + 1
    end
  end
  return fixed
end

-- Index entries of no job, or of a job that the index should not have.
local function check_index(key, repair, problems)
  local fixed = 0
  for _, id in ipairs(ask('ZRANGE', key, 0, PAGE - 1)) do
    local job = find(id)
    if not job or not indexes(job)[key] then
      problems[#problems + 1] = 'job ' .. id .. ' is in ' .. key .. ', where it does not belong'
      if repair then
        call('ZREM', key, id)
        fixed = fixed + 1
        read_again()
      end
    end
  end
  return fixed
end

-- The problems of a page that begins after an id, or the first with ''; how many were repaired; and the
-- id after which the next begins; false: it is the end.
function checked(after, repair)
  local problems, fixed, is_first = {}, 0, after == ''
  after = '(' .. (is_first and '0' or after)
  local ids = ask('ZRANGEBYSCORE', ROOT .. 'all', after, '+inf', 'LIMIT', 0, PAGE)
  for _, id in ipairs(ids) do
    local job = find(id)
    if job then
      fixed = fixed + check_job(job, repair, problems)
    else
      problems[#problems + 1] = 'job ' .. id .. ' is in the list of all jobs, and has no record'
      if repair then
        call('ZREM', ROOT .. 'all', id)
        fixed = fixed + 1
      end
    end
  end
  if is_first then
    local keys = { ROOT .. 'due', ROOT .. 'at', ROOT .. 'wants', ROOT .. 'dead', ROOT .. 'failed' }
    local all = lanes_in_use()
    for _, count in ipairs(all_counts()) do
      all[count[2]] = true
    end
    for lane in pairs(all) do
      keys[#keys + 1] = ROOT .. 'h:' .. lane
      keys[#keys + 1] = ROOT .. 'want:' .. lane
      keys[#keys + 1] = ROOT .. 'w:' .. lane
      for entry in pairs(ready_lists()[lane] or {}) do
        keys[#keys + 1] = ready_list(lane, entry)
      end
    end
    for _, instance in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
      keys[#keys + 1] = ROOT .. 'run:' .. instance
    end
    for _, key in ipairs(keys) do
      fixed = fixed + check_index(key, repair, problems)
    end
  end
  return problems, fixed, #ids == PAGE and ids[#ids]
end

function wrong_with(job)
  local state, head = job.state, is_head(job)
  if state == 'waiting' and head and not job.ready then
    return 'is a waiting head, and is on no ready list'
  elseif job.ready and state ~= 'waiting' then
    return 'is on a ready list, though it is ' .. state
  elseif job.ready and not head then
    return 'is on a ready list, though other jobs of its session are before it'
  elseif state == 'running' and not head then
    return 'runs, though other jobs of its session are before it'
  end
end
