-- Inspection: acts that change nothing, and the wait for the end of a job.

local LISTED = 100

local function status_of(job)
  local running, error = job.state == 'running', false
  if job.state == 'dead' or job.state == 'failed' then
    error = text_of(ROOT .. 'o:' .. job.id)
  end
  return {
    job.id, job.name, job.session or false, job.lane, job.priority, job.key or false, job.state,
    job.why or false, job.state == 'parked' and int(job.due), (job.attempts or 0) + (running and 1 or 0),
    job.crashes or 0, running and job.instance, running and job.cancel and 1 or 0, error,
    int(job.submitted), shown_runs(job),
  }
end

-- The last messages to a job: numbers, whether taken, texts.
local function last_messages(job)
  local found, flat = {}, call('HGETALL', ROOT .. 'm:' .. job.id)
  for at = 1, #flat, 2 do
    local number, message = tonumber(flat[at]), cmsgpack.unpack(flat[at + 1])
    if number > job.sent - LISTED then
      found[#found + 1] = { number, message.taken and 1 or 0, message.text }
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end

-- What a job carries: payload, checkpoint data, outcome, the number of the last event, events, messages.
local function texts_of(job)
  return {
    text_of(ROOT .. 'p:' .. job.id) or false, text_of(ROOT .. 'c:' .. job.id) or false,
    text_of(ROOT .. 'o:' .. job.id) or false, job.emitted or 0,
    call('LRANGE', ROOT .. 'e:' .. job.id, -LISTED, -1), job.sent and last_messages(job) or {},
  }
end

-- Arguments: the id, whether to answer what the job carries as well.
local function status_and_texts(arguments)
  local job = known(arguments[1])
  if not job then
    return { 0, false }
  end
  return { 0, status_of(job), arguments[2] == '1' and texts_of(job) or nil }
end

-- Answer: the state and the outcome of a job that has ended or is dead; only 0 if it has not, and the
-- caller is told when it does; false if it is unknown.
local function wait(arguments)
  local job = known(arguments[1])
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
local function running_in(arguments)
  local head = head_of(arguments[1])
  return { 0, head and head.state == 'running' and status_of(head) or false }
end

-- Arguments: a selection, the id after which, how many at most. Answer: the statuses, and the id
-- after which the next page begins; false: there are no more.
local function jobs_of(arguments)
  local most = tonumber(arguments[SELECTION + 2])
  local found, after = page_of(read_selection(arguments), arguments[SELECTION + 1], most)
  for at, job in ipairs(found) do
    found[at] = status_of(job)
  end
  return { 0, found, after }
end

-- Arguments: the session, how many at most. Answer: the oldest jobs that have not ended, with their
-- payloads, of which there are at most STEP_BYTES.
local function queue_of(arguments)
  local of = { states = ' waiting  parked  running ', session = arguments[1] }
  local answer, size = { 0 }, 0
  local most = math.min(tonumber(arguments[2]), PAGE)
  for _, job in ipairs(most > 0 and page_of(of, '0', most) or {}) do
    size = size + call('STRLEN', ROOT .. 'p:' .. job.id) + call('STRLEN', ROOT .. 'c:' .. job.id)
    if #answer > 1 and size > STEP_BYTES then
      break
    end
    local begun = (job.attempts or 0) > 0 or (job.crashes or 0) > 0 or job.kept
    answer[#answer + 1] = {
      job.id, job.name, job.key or false, job.state, call('GET', ROOT .. 'p:' .. job.id),
      begun and 1 or 0, int(math.max(0, now - job.submitted)),
    }
  end
  return answer
end

local function told_limit(name, limit)
  local paused = limit.paused
  return {
    name, limit.c and int(limit.c) or false, limit.m and int(limit.m) or false,
    paused and (paused == huge and 'inf' or int(paused)) or false, limit.proposed and 1 or 0,
    limit.rates,
  }
end

local function all_lanes()
  local answer = { 0 }
  local all, names = lanes()
  for _, name in ipairs(names) do
    if is_configured(all, name) then
      answer[#answer + 1] = told_limit(name, all[name])
    end
  end
  return answer
end

local function all_groups()
  local answer = { 0 }
  for name, group in pairs((groups())) do
    local reserve = {}
    for member, tokens in pairs(group.reserve) do
      reserve[#reserve + 1] = member
      reserve[#reserve + 1] = tokens
    end
    local most = group.c and int(group.c) or false
    answer[#answer + 1] = { name, group.members, most, reserve, group.rates }
  end
  return answer
end

local function shown_number(number)
  return number == huge and 'inf' or int(number)
end

local function all_rules()
  local all = rules()
  return {
    0, shown_number(all.result_ttl), shown_number(all.max_crashes), all.hold and 1 or 0,
  }
end

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
      answer[#answer + 1] = told_limit(name, limit)
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
    for _, request in ipairs(LINES.of_instance(instance)) do
      found[#found + 1] = {
        tonumber(request.id), request.costs and 1 or 0, LINES.name_of(request), instance,
        request.job or '', request.since or false, request.served ~= '0' and 1 or 0,
      }
    end
  end
  return found
end

-- Each quota from which something was spent: {name, limits, and of each limit what is in use, and when
-- it is as new}.
local function all_quotas()
  local found, flat = {}, call('HGETALL', ROOT .. 'qu')
  for at = 1, #flat, 2 do
    local levels, known = {}, cmsgpack.unpack(flat[at + 1])
    for place, meter in ipairs(cjson.decode(known[2])) do
      local used, as_new = used_of(meter_key('quota:' .. named(flat[at]), meter), meter)
      levels[place] = { int(used), used > 0 and int(as_new) }
    end
    found[#found + 1] = { flat[at], known[1], levels }
  end
  return found
end

-- Answer: the identity; counts of {state, lane, name, number}; sessions; sessions by lane; the names
-- of live instances' handlers; the lanes that are there; the time; paused sessions and until when; the
-- requests for locks and quotas; the quotas.
local function all_statistics()
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
    all_requests(), all_quotas(),
  }
end

local function all_instances()
  local answer = { 0 }
  local flat = call('ZRANGE', ROOT .. 'in', 0, -1, 'WITHSCORES')
  for at = 1, #flat, 2 do
    local info = instance_of(flat[at])
    answer[#answer + 1] = {
      flat[at], info.host, info.pid, int(info.since), flat[at + 1], info.names,
      ask('ZCARD', ROOT .. 'run:' .. flat[at]),
    }
  end
  return answer
end

WRITES.wait = wait
READS.status_of = status_and_texts
READS.running_in = running_in
READS.jobs_of = jobs_of
READS.queue_of = queue_of
READS.all_lanes = all_lanes
READS.all_groups = all_groups
READS.all_rules = all_rules
READS.all_statistics = all_statistics
READS.all_instances = all_instances
