-- Budgets: the free slots and the rates of lanes, while jobs are being claimed.
--
-- A job starts only if three limits allow it: the slots of its lane; the slots of the lane's group,
-- less the reservations of other lanes; the rates of both. A run that wants back a slot that it has
-- lent is counted as if it held one, so it goes ahead of all waiting jobs. A member of a group is a
-- lane, or a template: then all lanes of the template share the slots of that member.

local Budget = {}
Budget.__index = Budget

-- `uses`: of groups, by name: {lanes, used by member}. `due`: when a rate allows a start that it has
-- refused; or nil.
local function new_budget()
  local all, _, group_of = lanes(), groups()
  local fields = {
    all = all, group_of = group_of, used = {}, limits = {}, labels = {}, uses = {}, due = nil,
  }
  return setmetatable(fields, Budget)
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

function Budget:used_of(lane)
  if not self.used[lane] then
    local wanting = some_want() and ask('ZCARD', ROOT .. 'want:' .. lane) or 0
    self.used[lane] = ask('ZCARD', ROOT .. 'h:' .. lane) + wanting
  end
  return self.used[lane]
end

function Budget:add_lane_of_group(use, group, lane)
  local label = self:label(lane)
  for _, member in ipairs(group.members) do
    if member == label then
      use.lanes[#use.lanes + 1] = lane
      use.used[member] = (use.used[member] or 0) + self:used_of(lane)
    end
  end
end

-- The group of a lane, its use, and the member that the lane belongs to.
function Budget:group_with_use(lane)
  local member = self:label(lane) or lane
  local group = self.group_of[member]
  if not group then
    return nil
  end
  local use = self.uses[group.name]
  if not use then
    use = { lanes = {}, used = {} }
    self.uses[group.name] = use
    local in_use = lanes_in_use()
    in_use[lane] = true
    for other in pairs(in_use) do
      self:add_lane_of_group(use, group, other)
      if self:used_of(other) == 0 and not self.all[other] then
        call('SREM', ROOT .. 'lr', other)
      end
    end
  end
  return group, use, member
end

local function left_of(group, use)
  local left = group.c or huge
  for _, number in pairs(use.used) do
    left = left - number
  end
  return left
end

-- How many free slots of a group are reserved for other members.
local function kept_from(group, use, member)
  local kept = 0
  for other, tokens in pairs(group.reserve) do
    if other ~= member then
      kept = kept + math.max(0, tokens - (use.used[other] or 0))
    end
  end
  return kept
end

function Budget:free(lane)
  local free = (self:limit(lane).c or huge) - self:used_of(lane)
  local group, use, member = self:group_with_use(lane)
  if group then
    free = math.min(free, left_of(group, use) - kept_from(group, use, member))
  end
  return math.max(0, free)
end

-- Which limits leave no slot to a lane, as {kind, the lane or its group}.
function Budget:refused_by(lane)
  local found = {}
  if self:used_of(lane) >= (self:limit(lane).c or huge) then
    found[1] = { 'concurrency', lane }
  end
  local group, use, member = self:group_with_use(lane)
  if group then
    local left = left_of(group, use)
    if left <= 0 then
      found[#found + 1] = { 'group', group.name }
    elseif left <= kept_from(group, use, member) then
      found[#found + 1] = { 'reservation', group.name }
    end
  end
  return found
end

-- When the rates of a lane, and of its group, allow a start of a job.
function Budget:rates_ready_at(job)
  local lane, costs = job.lane, job.cost or ONE_REQUEST
  local of_lane = meters_ready_at('lane ' .. lane, self:limit(lane).meters, costs)
  local group = self.group_of[self:label(lane)]
  return of_lane, group and meters_ready_at('group ' .. group.name, group.meters, costs) or -huge
end

function Budget:rates_allow(job)
  local ready_at = math.max(self:rates_ready_at(job))
  if ready_at <= now then
    return true
  end
  self.due = math.min(self.due or huge, ready_at)
  return false
end

-- The rates that do not allow it now, as {the lane or its group, when they do}.
function Budget:rates_until(job)
  local found = {}
  local of_lane, of_group = self:rates_ready_at(job)
  if of_lane > now then
    found[1] = { job.lane, of_lane }
  end
  if of_group > now then
    found[#found + 1] = { self.group_of[self:label(job.lane)].name, of_group }
  end
  return found
end

function Budget:take(job)
  local lane, costs = job.lane, job.cost or ONE_REQUEST
  local group, use, member = self:group_with_use(lane)
  self.used[lane] = self:used_of(lane) + 1
  if self:label(lane) ~= lane then
    call('SADD', ROOT .. 'lr', lane)
  end
  local as_new = charge_meters('lane ' .. lane, self:limit(lane).meters, costs)
  if as_new then
    call('ZADD', ROOT .. 'ml', as_new, lane)
  end
  if group then
    use.used[member] = (use.used[member] or 0) + 1
    charge_meters('group ' .. group.name, group.meters, costs)
  end
end

-- What keeps a run from the slot that it wants back, as `refused_by` says it; or nil. Such runs
-- return in the order of their fences.
function Budget:return_refused_by(job)
  local lane = job.lane
  local function before(of)
    return ask('ZCOUNT', ROOT .. 'want:' .. of, '-inf', '(' .. int(job.fence))
  end
  local mine = ask('ZCARD', ROOT .. 'want:' .. lane)
  if before(lane) >= (self:limit(lane).c or huge) - self:used_of(lane) + mine then
    return { 'concurrency', lane }
  end
  local group, use = self:group_with_use(lane)
  if not group then
    return nil
  end
  local earlier, wanting = 0, 0
  for _, other in ipairs(use.lanes) do
    earlier = earlier + before(other)
    wanting = wanting + ask('ZCARD', ROOT .. 'want:' .. other)
  end
  return earlier >= left_of(group, use) + wanting and { 'group', group.name } or nil
end
