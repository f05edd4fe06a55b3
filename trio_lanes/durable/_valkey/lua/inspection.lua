-- Inspection: acts that change nothing, the wait for the end of a job, and the check of consistency, in
-- pages: a page of jobs against the rules and the indexes, and of each index of runs against its jobs.

local SHOWN = 100

-- Functions that are called before the place that they have in inspection.py, too.
local record_of, texts_of, checked, wrong_with

function READS.all_lanes()
  return { 0, json(lanes()) }
end

function READS.all_groups()
  return { 0, json(groups()) }
end

function READS.all_rules()
  return { 0, json(rules()) }
end

function READS.all_instances()
  local found = {}
  local flat = call('ZRANGE', ROOT .. 'in', 0, -1, 'WITHSCORES')
  for at = 1, #flat, 2 do
    local runs, of_lanes = ask('ZRANGE', ROOT .. 'run:' .. flat[at], 0, PAGE - 1), {}
    find_all(runs)
    for _, id in ipairs(runs) do
      local lane = find(id).lane
      of_lanes[lane] = (of_lanes[lane] or 0) + 1
    end
    local info = info_of(flat[at], flat[at + 1])
    info.lanes, info.alive = of_lanes, is_alive(flat[at])
    found[#found + 1] = info
  end
  return { 0, json(found) }
end

-- A server of this kind keeps no old versions for anybody.
function READS.held_snapshots()
  return { 0, '[]' }
end

-- Answer: the oldest jobs that have not ended, with their
-- payloads, of which there are at most STEP_BYTES.
function READS.queue_of(session, limit)
  local of = { states = { waiting = true, parked = true, running = true }, session = session }
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
      begun and 1 or 0, int(math.max(0, now - job.submitted_at)),
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
  return { 0, record_of(job), texts == '1' and texts_of(job) or nil }
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
  return { 0, job and record_of(job) or false }
end

-- The status of the job that has a key.
function READS.keyed(key)
  local job = keyed(key)
  return { 0, job and record_of(job) or false }
end

-- Answer: jobs, and the id after which the next page begins; false: there are no more.
function READS.jobs_of(of, after, limit)
  local found, last = page_of(cjson.decode(of), after, tonumber(limit))
  for at, job in ipairs(found) do
    found[at] = record_of(job)
  end
  return { 0, found, last }
end

-- By lane, how many of the first parked jobs are due.
local function parked_until_now()
  local ids, found = ask('ZRANGEBYSCORE', ROOT .. 'due', '-inf', now, 'LIMIT', 0, PAGE), {}
  find_all(ids)
  for _, id in ipairs(ids) do
    local job = find(id)
    if job.state == 'parked' and job.due <= now then  -- else it has expired
      found[job.lane] = (found[job.lane] or 0) + 1
    end
  end
  return found
end

-- When the first job is due or expires, or the first pause of a session is over, in Unix time; nil: none.
local function first_due()
  local first = math.min(first_time('due') or huge, first_time('pauses') or huge)
  return first < huge and first - (meta.offset or 0) or nil
end

-- The first schedules that are due: what the client has given.
local function schedules_due()
  local time, found = now - (meta.offset or 0), {}
  for _, id in ipairs(call('ZRANGEBYSCORE', ROOT .. 'sf', '-inf', time, 'LIMIT', 0, SHOWN)) do
    found[#found + 1] = cmsgpack.unpack(call('HGET', ROOT .. 'sc', id)).data
  end
  return found
end

-- What statistics are made of. `counts`: {state, lane, name, number}; `sessions_of_lanes`: of the lanes in
-- these; `handled`: the names of live instances' handlers; `first`: when the first job or pause is due, in
-- Unix time; `fires`: when the first schedule is.
function READS.all_statistics(quota)
  local counts, by_lane, handled, requests = all_counts(), {}, {}, {}
  for _, count in ipairs(counts) do
    by_lane[count[2]] = call('HLEN', ROOT .. 'sl:' .. count[2])
  end
  for _, id in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    for _, name in ipairs(instance_of(id).names) do
      handled[#handled + 1] = name
    end
    for _, request in ipairs(lines.of_instance(id)) do
      requests[#requests + 1] = request
    end
  end
  return { 0, json({
    store = call('HGET', META, 'identity'), sessions = call('HGET', META, 'sessions') or 0, now = now,
    counts = counts, ends = call('HGETALL', ROOT .. 'ends'), lanes = lanes(), sessions_of_lanes = by_lane, handled = handled,
    pauses = call('ZRANGE', ROOT .. 'pauses', 0, -1, 'WITHSCORES'), requests = requests,
    quotas = lines.quotas(given(quota)), due = parked_until_now(), schedules = schedules_due(),
    first = first_due(), fires = meta.fires,
  }) }
end

-- Answer: the problems, the id after which the next page begins.
function WRITES.check(after)
  local report, last = checked(after, false)
  return { 0, report.problems, last }
end

-- The same; the answer begins with how many were repaired.
function WITH_TICKET.repair(after)
  local report, last = checked(after, true)
  return { 0, report.fixed, last }
end

-- What the status of a job is made of. Only of a dead or failed job it shows the outcome.
function record_of(job)
  local fails = job.state == 'dead' or job.state == 'failed'
  return json({ job = job, outcome = fails and text_of(ROOT .. 'o:' .. job.id) or nil, now = now, holds = holds_of(job.lane) })
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

-- Add a problem to a report, {problems, repair, fixed}; and mend it, if it can be and shall be.
local function report_problem(report, text, mend)
  report.problems[#report.problems + 1] = text
  if mend and report.repair then
    mend()
    report.fixed = report.fixed + 1
  end
end

local function check_job(job, report)
  local function add(text, mend)
    report_problem(report, 'job ' .. job.id .. ' ' .. text, mend)
  end
  local key = missing_from(job)
  if key then
    add('is not in its place in ' .. key, function()
      WAS[job.id].at = {}
      put(job)
      read_again()
    end)
  end
  if ENDED[job.state] then
    return
  end
  local wrong = wrong_with(job)
  if job.state == 'running' and call('EXISTS', ROOT .. 'i:' .. job.instance) == 0 then
    local mend = is_head(job) and function() crash({ job.id }) end
    add('runs on an instance that is not in the store', mend)
  end
  if not label_of(lanes(), job.lane) then
    add('is for lane ' .. job.lane .. ', which is not in the store')
  end
  if wrong then
    add(wrong, function()
      job.ready, job.shelf, job.party, job.ring = nil, nil, nil, nil
      put(job)
      if job.state == 'waiting' and is_head(job) then
        list_ready(job)
      end
    end)
  end
end

-- Index entries of no job, or of a job that the index should not have.
local function check_index(key, report)
  for _, id in ipairs(ask('ZRANGE', key, 0, PAGE - 1)) do
    local job = find(id)
    if not job or not indexes(job)[key] then
      report_problem(report, 'job ' .. id .. ' is in ' .. key .. ', where it does not belong', function()
        call('ZREM', key, id)
        read_again()
      end)
    end
  end
end

-- The indexes that are compared with the jobs in them.
local function checked_indexes()
  local keys, of_lanes = { 'due', 'at', 'sw', 'wants', 'dead', 'failed' }, lanes_in_use()
  for _, count in ipairs(all_counts()) do
    of_lanes[count[2]] = true
  end
  for lane in pairs(of_lanes) do
    for _, kind in ipairs({ 'h:', 'want:', 'w:' }) do
      keys[#keys + 1] = kind .. lane
    end
  end
  for _, instance in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
    keys[#keys + 1] = 'run:' .. instance
  end
  for _, lanes_of in ipairs({ 'lists', 'aside' }) do
    for _, lane in ipairs(call('ZRANGE', ROOT .. lanes_of, 0, -1)) do
      for entry in pairs(lists_of(lane)) do
        keys[#keys + 1] = 'r:' .. named(lane) .. ':' .. entry
      end
    end
  end
  return keys
end

-- The report of a page that begins after an id, or the first with '', and the id after which the next
-- begins; false: it is the end.
function checked(after, repair)
  local report = { problems = {}, repair = repair, fixed = 0 }
  local from = '(' .. (after == '' and '0' or after)
  local ids = ask('ZRANGEBYSCORE', ROOT .. 'all', from, '+inf', 'LIMIT', 0, PAGE)
  for _, id in ipairs(ids) do
    local job = find(id)
    if job then
      check_job(job, report)
    else
      report_problem(report, 'job ' .. id .. ' is in the list of all jobs, and has no record', function()
        call('ZREM', ROOT .. 'all', id)
      end)
    end
  end
  for _, key in ipairs(after == '' and checked_indexes() or {}) do
    check_index(ROOT .. key, report)
  end
  return report, #ids == PAGE and ids[#ids]
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
