-- Budgets: the free slots and the rates of lanes, while jobs are being claimed.
--
-- A job starts only if three limits allow it: the slots of its lane; the slots of the lane's group,
-- less the reservations of other lanes; the rates of both. A run that wants back a slot that it has
-- lent is counted as if it held one, so it goes ahead of all waiting jobs. A member of a group is a
-- lane, or a template: then all lanes of the template share the slots of that member.

local Budget, GroupUse = {}, {}
Budget.__index, GroupUse.__index = Budget, GroupUse

-- `groups`: by name, as far as their use is counted. `refused`: by lane that a rate has refused, when
-- it allows the next start. `due`: when a rate allows a start that it has
-- refused; or nil.
function Budget.new()
  local all, _, group_of = lanes(), groups()
  return setmetatable({
    all = all, group_of = group_of, used = {}, limits = {}, labels = {}, groups = {}, owned = {},
    refused = {},
  }, Budget)
end

function Budget:limit(lane)
  if self.limits[lane] == nil then
    self.limits[lane] = limit_of(lane, self.all) or false
  end
  return self.limits[lane] or nil
end

function Budget:label(lane)
  local label = self.labels[lane]
  if label == nil then
    label = label_of(self.all, lane) or false
    self.labels[lane] = label
  end
  return label
end

-- How many slots of a lane are used.
function Budget:use(lane)
  if not self.used[lane] then
    local requests = has_slot_requests() and ask('ZCARD', ROOT .. 'want:' .. lane) or 0
    self.used[lane] = ask('ZCARD', ROOT .. 'h:' .. lane) + requests
  end
  return self.used[lane]
end

-- The group of a lane, its use counted, and the member that the lane belongs to.
function Budget:group(lane)
  local member = self:label(lane) or lane
  local limit = self.group_of[member]
  if not limit then
    return nil
  end
  local group = self.groups[limit.name]
  if not group then
    group = setmetatable({ name = limit.name, limit = limit, lanes = {}, used = {} }, GroupUse)
    self.groups[limit.name] = group
    local in_use = lanes_in_use()
    in_use[lane] = true
    for other in pairs(in_use) do
      local its_member = self:label(other)
      if its_member and self.group_of[its_member] == limit then
        group.lanes[#group.lanes + 1] = other
        group.used[its_member] = (group.used[its_member] or 0) + self:use(other)
      end
      if self:use(other) == 0 and not self.all[other] then
        call('SREM', ROOT .. 'lr', other)
      end
    end
  end
  return group, member
end

function Budget:free(lane)
  local free = self:limit(lane).concurrency - self:use(lane)
  local group, member = self:group(lane)
  if group then
    free = math.min(free, group:left() - group:kept(member))
  end
  return math.max(0, free)
end

-- Which limits leave no slot to a lane, as {kind, the lane or its group}.
function Budget:refused_by(lane)
  local found = {}
  if self:use(lane) >= self:limit(lane).concurrency then
    found[1] = { 'concurrency', lane }
  end
  local group, member = self:group(lane)
  if group then
    local left = group:left()
    if left <= 0 then
      found[#found + 1] = { 'group', group.name }
    elseif left <= group:kept(member) then
      found[#found + 1] = { 'reservation', group.name }
    end
  end
  return found
end

-- What keeps the next job of a lane from a start, as a cause of waits, or ''.
function Budget:why_not(lane)
  local refused = self:refused_by(lane)[1]
  if refused then
    return refused[1] == 'concurrency' and 'slots' or 'group'
  end
  return self.refused[lane] and 'rate' or ''
end

-- The job that has had a slot longest, of a lane, or of the lanes of its group; or nil.
function Budget:holder(kind, lane)
  local first, least = nil, huge
  for _, one in ipairs(kind == 'concurrency' and { lane } or self:group(lane).lanes) do
    local run = ask('ZRANGE', ROOT .. 'h:' .. one, 0, 0, 'WITHSCORES')
    if run[1] and tonumber(run[2]) < least then
      first, least = run[1], tonumber(run[2])
    end
  end
  return first
end

function Budget:rates_allow(job)
  local at = -huge
  for _, owned in ipairs(self:meters_by_owner(job.lane)) do
    at = math.max(at, rates.ready_at(owned.key, owned.meters, job.cost or ONE_REQUEST))
  end
  if at <= now then
    return true
  end
  self.due = math.min(self.due or huge, at)
  self.refused[job.lane] = at
  return false
end

-- Whether a lane without a free slot, or that its rates refuse, is held by itself alone.
function Budget:is_held(lane)
  if self.refused[lane] then
    return not self:group(lane)
  end
  return self:use(lane) >= self:limit(lane).concurrency
end

function Budget:take(job)
  local lane = job.lane
  local group, member = self:group(lane)
  self.used[lane] = self:use(lane) + 1
  if self:label(lane) ~= lane then
    call('SADD', ROOT .. 'lr', lane)
  end
  if group then
    group.used[member] = (group.used[member] or 0) + 1
  end
  for place, owned in ipairs(self:meters_by_owner(lane)) do
    local refilled_at = rates.charge(owned.key, owned.meters, job.cost or ONE_REQUEST)
    if refilled_at and place == 1 then
      call('ZADD', ROOT .. 'ml', refilled_at, lane)
    end
  end
end

-- Whether a rate of a lane or its group counts its starts.
function Budget:is_rated(lane)
  local owned = self:meters_by_owner(lane)
  return #owned[1].meters > 0 or (owned[2] and #owned[2].meters > 0)
end

-- A refusal, if a rate of the lane and its group counts an amount in other parts, or if no such rate
-- counts a unit; else nil.
function Budget:check_units(lane, costs)
  local counted, names = { requests = true }, {}
  for _, owned in ipairs(self:meters_by_owner(lane)) do
    for _, meter in ipairs(owned.meters) do
      counted[meter.unit] = true
      names[#names + 1] = meter.unit
      local amount = costs[meter.unit] or 0
      if not rates.fits(amount, meter.scale) then
        return { 1, 'amount', meter.unit, lane, type(amount) == 'string' and amount or int(amount) }
      end
    end
  end
  for unit in pairs(costs) do
    if not counted[unit] then
      return { 1, 'unit', unit, lane, unpack(names) }
    end
  end
end

-- The lane, and its group if it has one: {name, key of the meters, meters}.
function Budget:meters_by_owner(lane)
  local owned = self.owned[lane]
  if not owned then
    owned = { { name = lane, key = 'lane ' .. lane, meters = self:limit(lane).meters } }
    local group = self.group_of[self:label(lane)]
    if group then
      owned[2] = { name = group.name, key = 'group ' .. group.name, meters = group.meters }
    end
    self.owned[lane] = owned
  end
  return owned
end

-- The rates that do not allow it now, as {the lane or its group, when they do}.
function Budget:rates_until(job)
  local found = {}
  for _, owned in ipairs(self:meters_by_owner(job.lane)) do
    local at = rates.ready_at(owned.key, owned.meters, job.cost or ONE_REQUEST)
    if at > now then
      found[#found + 1] = { owned.name, at }
    end
  end
  return found
end

-- What keeps a run from the slot that it wants back, as `refused_by` says it; or nil. Such runs
-- return in the order of their fences.
function Budget:return_refused_by(job)
  local lane = job.lane
  local function before(of)
    return ask('ZCOUNT', ROOT .. 'want:' .. of, '-inf', '(' .. int(job.fence))
  end
  local mine = ask('ZCARD', ROOT .. 'want:' .. lane)
  if before(lane) >= self:limit(lane).concurrency - self:use(lane) + mine then
    return { 'concurrency', lane }
  end
  local group = self:group(lane)
  if not group then
    return nil
  end
  local earlier, requests = 0, 0
  for _, other in ipairs(group.lanes) do
    earlier = earlier + before(other)
    requests = requests + ask('ZCARD', ROOT .. 'want:' .. other)
  end
  return earlier >= group:left() + requests and { 'group', group.name } or nil
end

function GroupUse:left()
  local left = self.limit.concurrency
  for _, number in pairs(self.used) do
    left = left - number
  end
  return left
end

-- How many free slots of a group are reserved for other members.
function GroupUse:kept(member)
  local kept = 0
  for other, tokens in pairs(self.limit.reserve) do
    if other ~= member then
      kept = kept + math.max(0, tokens - (self.used[other] or 0))
    end
  end
  return kept
end
