-- The check of consistency, in pages: a page of jobs against the rules and the indexes, and of each
-- index of runs against its jobs.

local function is_head(job)
  return not job.session or (job.place and head_of(job.session).id == job.id)
end

local function wrong_with(job)
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

local function indexes_of(job)
  local at = indexes(job)
  if ready_number(job) then
    at[ready_list(job.lane, entry_of(job))] = job.ready
  end
  return at
end

local function missing_from(job)
  write_tails()
  for key, score in pairs(indexes_of(job)) do
    if tonumber(ask_all('ZSCORE', key, job.id) or nil) ~= score then
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
      WAS[job.id].at, WAS[job.id].ready = {}, nil
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
  for _, id in ipairs(ask_all('ZRANGE', key, 0, PAGE - 1)) do
    local job = find(id)
    if not job or not indexes_of(job)[key] then
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
local function check_page(after, repair)
  local problems, fixed, is_first = {}, 0, after == ''
  after = '(' .. (is_first and '0' or after)
  local ids = ask_all('ZRANGEBYSCORE', ROOT .. 'all', after, '+inf', 'LIMIT', 0, PAGE)
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
      for _, entry in ipairs(members(ROOT .. 'rn:' .. lane)) do
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

-- Arguments: the id after which. Answer: the problems, the id after which the next page begins.
local function check(arguments)
  local problems, _, after = check_page(arguments[1], false)
  return { 0, problems, after }
end

-- The same; the answer begins with how many were repaired.
local function repair(arguments)
  local _, fixed, after = check_page(arguments[1], true)
  return { 0, fixed, after }
end

WRITES.check = check
WITH_TICKET.repair = repair
