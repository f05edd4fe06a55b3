-- Claims: which ready jobs an instance with free capacity may run.
--
-- Lanes take turns. In a lane the highest priority goes first, but a lower priority with ready jobs
-- is passed over at most nine times in a row. In a priority the fronts of the lists whose handlers the
-- instance has are merged by ready number. Whose turn it is is in the hash `turns`, over all
-- instances. A suspect (`together`) goes before all other jobs, and an instance that runs a suspect
-- runs at most half as many jobs as ran in its last crash, for a time that doubles with each crash.

local PRIORITIES = { 1, 0, -1 }
local PASSED_OVER = { [0] = 8, [-1] = 9 }
local ISOLATED_FOR = 15 * SECOND
local STEP_BYTES = 4 * 1024 * 1024
local FRONT = 20

local PAYLOADS  -- by id, as far as this call has read them

at_call(function()
  PAYLOADS = {}
end)

local function payload_of(job)
  local payload = PAYLOADS[job.id] or text_of(ROOT .. 'p:' .. job.id)
  PAYLOADS[job.id] = payload
  return payload
end

-- `rest`: what only the worker reads, as the submitter gave it.
local function claim_of(job)
  local kept = job.kept and text_of(ROOT .. 'c:' .. job.id)
  return {
    job.id, job.fence, job.name, payload_of(job), job.session or false, job.lane,
    (job.attempts or 0) + 1, job.crashes or 0, job.rest or '', kept or false,
  }
end

local function claim_bytes(job)
  return #payload_of(job) + (job.kept and #(text_of(ROOT .. 'c:' .. job.id) or '') or 0)
end

-- What the suspects that an instance runs leave to other jobs. `due`: when a restriction ends; or nil.
local Isolation = {}
Isolation.__index = Isolation

function Isolation:lasts(job)
  if not job.since then
    job.since = now
    put(job)
  end
  local ends = job.since + ISOLATED_FOR * 2 ^ math.min(job.crashes or 0, 64)
  if ends > now then
    self.due = math.min(self.due or huge, ends)
  end
  return ends > now
end

function Isolation:restrict(job)
  if together(job) < self.most and self:lasts(job) then
    self.most = together(job)
  end
end

local function new_isolation(instance)
  local fields = { instance = instance, claimed = 0, before = nil, most = huge, due = nil }
  local isolation = setmetatable(fields, Isolation)
  for _, id in ipairs(ask('ZRANGE', ROOT .. 'su:' .. instance, 0, -1)) do
    isolation:restrict(find(id))
  end
  return isolation
end

-- How many jobs the instance runs. It is only read if there is a suspect.
function Isolation:running()
  self.before = self.before or runs_beside(self.instance) - self.claimed
  return self.before + self.claimed
end

function Isolation:has_room()
  return self.most == huge or self:running() < self.most
end

function Isolation:allows(suspect)
  return self:running() < together(suspect) or not self:lasts(suspect)
end

function Isolation:add(job)
  self.claimed = self.claimed + 1
  if job.company then
    job.since = nil
    self:restrict(job)
  end
end

-- The ready lists of one lane whose handlers an instance has: `lists`, by priority, by entry. Of each
-- the first FRONT jobs are read at once: no other job joins a sorted set, or leaves it, while jobs are
-- claimed. Instead of a page, true: it is not read; false: only the tail of the list is left.
-- `present`: whether there was a list at first.
local Fronts = {}
Fronts.__index = Fronts

local function new_fronts(lane, names)
  local fronts = { lane = lane, lists = { [1] = {}, [0] = {}, [-1] = {} }, present = false }
  local function add(entry, page)
    local priority, name = string.match(entry, '^(%-?%d):(.*)$')
    if names[name] then
      fronts.lists[tonumber(priority)][entry], fronts.present = page, true
    end
  end
  for entry in pairs(TAILS[lane] or {}) do
    add(entry, false)
  end
  for _, entry in ipairs(lanes_with_lists()[lane] and members(ROOT .. 'rn:' .. lane) or {}) do
    add(entry, true)
  end
  return setmetatable(fronts, Fronts)
end

function Fronts:drop(list, entry)
  list[entry] = false
  drop_list(self.lane, entry)
end

-- The id and ready number of the first job of a list; an empty list is dropped.
function Fronts:front(list, entry)
  local page = list[entry]
  if page == true then
    page = call('ZRANGE', ready_list(self.lane, entry), 0, FRONT - 1, 'WITHSCORES')
    page.at = 1
    list[entry] = page
    if not page[1] then
      self:drop(list, entry)
    end
  end
  if list[entry] then
    return page[page.at], tonumber(page[page.at + 1])
  end
  return first_of_tail(self.lane, entry)
end

function Fronts:first(priority)
  local list, best, least, of = self.lists[priority], nil, nil, nil
  for entry in pairs(list) do
    local id, number = self:front(list, entry)
    if id and (not best or number < least) then
      best, least, of = id, number, entry
    end
  end
  return best and find(best), of
end

-- The first job of a list is claimed, and leaves it.
function Fronts:taken(priority, entry)
  local list, page = self.lists[priority], self.lists[priority][entry]
  if not page then
    return
  end
  page.at = page.at + 2
  if page.at > #page and #page < 2 * FRONT then
    self:drop(list, entry)
  elseif page.at > #page then
    list[entry] = true
  end
end

-- The first suspect among jobs.
local function suspect_of(heads)
  for _, job in ipairs(heads) do
    if together(job) < huge then
      return job
    end
  end
end

-- The heads of all lists, the highest priority first; and the list of each, by id.
function Fronts:heads()
  local heads, of = {}, {}
  for _, priority in ipairs(PRIORITIES) do
    local head, entry = self:first(priority)
    if head then
      heads[#heads + 1] = head
      of[head.id] = entry
    end
  end
  return heads, of
end

-- Whose turn it is: the values of the hash `turns`, and their changes.
local Turns = {}
Turns.__index = Turns

local function new_turns()
  local known, flat = {}, call('HGETALL', ROOT .. 'turns')
  for at = 1, #flat, 2 do
    known[flat[at]] = flat[at + 1]
  end
  return setmetatable({ known = known, new = {} }, Turns)
end

function Turns:served()
  return self.new.served or self.known.served
end

function Turns:passed(lane, priority)
  local key = 'passed ' .. priority .. ' ' .. lane
  return tonumber(self.new[key] or self.known[key] or 0)
end

function Turns:put_served(lane)
  self.new.served = lane
end

function Turns:put_passed(lane, priority, times)
  self.new['passed ' .. priority .. ' ' .. lane] = times
end

function Turns:keep()
  for key, value in pairs(self.new) do
    local before = self.known[key]
    if tostring(value) ~= before and not (value == 0 and not before) then
      call('HSET', ROOT .. 'turns', key, value)
    end
  end
end

-- The job that is next in a lane, whether or not it may start; its list; and the heads of all lists,
-- the highest priority first.
local function choose(lane, fronts, turns)
  local heads, of = fronts:heads()
  local job = suspect_of(heads) or heads[1]
  if job and together(job) == huge then
    for at = #heads, 2, -1 do
      local priority = heads[at].priority
      if turns:passed(lane, priority) >= PASSED_OVER[priority] then
        job = heads[at]
        break
      end
    end
  end
  return job, job and of[job.id], heads
end

-- The next job of a lane; or nil, and why: 'isolation' (a suspect would start if this instance ran
-- fewer jobs), 'bytes' (it is too large).
local function next_of(lane, fronts, budget, turns, isolation, most_bytes)
  local job, entry, heads = choose(lane, fronts, turns)
  if not job or budget:free(lane) <= 0 or not budget:rates_allow(job) then
    return nil
  end
  if together(job) < huge and not isolation:allows(job) then
    return nil, 'isolation'
  end
  if most_bytes < huge and claim_bytes(job) > most_bytes then
    return nil, 'bytes'
  end
  for _, head in ipairs(heads) do
    if head.priority < job.priority then
      turns:put_passed(lane, head.priority, turns:passed(lane, head.priority) + 1)
    end
  end
  turns:put_passed(lane, job.priority, 0)
  budget:take(job)
  fronts:taken(job.priority, entry)
  return job
end

-- Sort lanes by name, beginning behind the lane of the last claim.
local function sort_by_turn(lanes_with_jobs, served)
  table.sort(lanes_with_jobs, function(one, other)
    if (one > served) ~= (other > served) then
      return one > served
    end
    return one < other
  end)
end

-- The lanes that may start a job, in their turn: lanes with suspects first.
local function lanes_in_turn(lanes_with_jobs, names, budget, turns)
  local suspects, others = {}, {}
  sort_by_turn(lanes_with_jobs, turns:served() or '')
  for _, lane in ipairs(lanes_with_jobs) do
    local limit = budget:limit(lane)
    if limit and not is_paused(limit) then
      local fronts = new_fronts(lane, names)
      if fronts.present and budget:free(lane) > 0 then
        local line = suspect_of((fronts:heads())) and suspects or others
        line[#line + 1] = { lane = lane, fronts = fronts }
      end
    end
  end
  for _, turn in ipairs(others) do
    suspects[#suspects + 1] = turn
  end
  return suspects
end

-- Claim up to `room` jobs. Return the claims, when a limit that kept a job out ends, and whether the
-- claims have STEP_BYTES.
local function take(instance, info, room)
  local claims = {}
  if room <= 0 then
    return claims, nil, false
  end
  local isolation = new_isolation(instance)
  local lanes_with_jobs = ready_lanes()
  if #lanes_with_jobs == 0 then
    return claims, isolation.due, false
  end
  local names = {}
  for _, name in ipairs(info.names) do
    names[name] = true
  end
  local budget, turns = new_budget(), new_turns()
  local in_turn, at = lanes_in_turn(lanes_with_jobs, names, budget, turns), 1
  local left, why = huge, nil
  while in_turn[at] and #claims < room and isolation:has_room() and why ~= 'bytes' do
    local turn = in_turn[at]
    at = at + 1
    local job
    job, why = next_of(turn.lane, turn.fronts, budget, turns, isolation, left)
    if job then
      turns:put_served(job.lane)
      job.state, job.ready, job.instance, job.lent = 'running', nil, instance, nil
      job.fence = next_number()
      begin_run(job, info)
      isolation:add(job)
      put(job)
      claims[#claims + 1] = claim_of(job)
      in_turn[#in_turn + 1] = turn
      left = math.min(left, STEP_BYTES) - claim_bytes(job)
    elseif why == 'isolation' then
      break
    end
  end
  turns:keep()
  local due = math.min(budget.due or huge, isolation.due or huge)
  return claims, due < huge and due or nil, why == 'bytes'
end
