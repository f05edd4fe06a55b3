-- Accepting jobs: all of a batch, or none.

local JOB_FIELDS = 11

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

-- A unit of the costs that no rate of the lane and its group counts; and the units that are counted.
local function uncounted(item, limit)
  local _, group_of = groups()
  local group, counted, names = group_of[label_of(lanes(), item.lane)], { requests = true }, {}
  for _, meters in ipairs({ limit.meters, group and group.meters or {} }) do
    for _, meter in ipairs(meters) do
      counted[meter.unit] = true
      names[#names + 1] = meter.unit
    end
  end
  for unit in pairs(item.cost) do
    if not counted[unit] then
      return unit, names
    end
  end
end

-- A refusal, if the job that has the key differs from the item; else nil.
local function compare(item, job)
  for _, field in ipairs({ 'name', 'session', 'lane', 'digest' }) do
    if item[field] ~= job[field] then
      local id = job.id or '0'
      return { 1, 'key', item.key, id, field == 'digest' and 'payload' or field }
    end
  end
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
        local unit, counted = uncounted(item, lane)
        if unit then
          return { 1, 'unit', unit, item.lane, unpack(counted) }
        end
      end
      if lane.m then
        fresh[item.lane] = (fresh[item.lane] or 0) + 1
        if ask_all('ZCARD', ROOT .. 'w:' .. item.lane) + fresh[item.lane] > lane.m then
          return { 1, 'full', item.lane, lane.m }
        end
      end
    end
  end
end

local function accept(item)
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
    key = item.key, digest = item.digest, submitted = now, told = CHANNEL,
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

-- Arguments: JOB_FIELDS for each job. Answer: the ids.
local function enqueue(arguments)
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

WITH_TICKET.enqueue = enqueue
GROWS.enqueue = true
