-- Claims: which ready jobs an instance with free capacity may run.
--
-- Lanes take turns; of many lanes a claim looks at those only whose turn comes while it has room. In a lane the highest priority goes first, but a lower priority with ready jobs
-- is passed over at most nine times in a row; with aging, `rank` decides. In a priority the fronts of
-- the lists whose handlers the instance has are merged by ready number. Whose turn it is is in the hash
-- `turns`, over all instances. A suspect (`max_runs_with`) goes before all other jobs, and an instance that runs a suspect
-- runs at most half as many jobs as ran in its last crash, for a time that doubles with each crash.

local PRIORITIES = { 1, 0, -1 }
local PASSED_OVER = { [0] = 8, [-1] = 9 }
local ISOLATED_FOR = 15 * SECOND
local STEP_BYTES = 4 * 1024 * 1024
local FRONT = 20
local IN_VAIN = 50  -- how many lanes a claim looks at in vain before it puts others aside
local ASIDE_FOR = 60 * SECOND  -- the first one comes back after that at the latest, the last after twice that

local FairTurns, Claims, Isolation, Fronts, LaneTurn = {}, {}, {}, {}, {}
FairTurns.__index, Isolation.__index = FairTurns, Isolation
Fronts.__index, LaneTurn.__index = Fronts, LaneTurn

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

local function bytes_of(job)
  return #payload_of(job) + (job.kept and #(text_of(ROOT .. 'c:' .. job.id) or '') or 0)
end

-- ---- whose turn it is: the values of the hash `turns`, and their changes

local function passed_key(lane, priority)
  return 'passed ' .. priority .. ' ' .. lane
end

-- `known`: what has been read; false: nothing is there.
function FairTurns.new()
  local served = call('HGET', ROOT .. 'turns', 'served')
  return setmetatable({ known = { served = served }, new = {}, vain = 0 }, FairTurns)
end

-- Read how often the priorities of a lane were passed over.
function FairTurns:read(lane)
  local keys = {}
  for at, priority in ipairs(PRIORITIES) do
    keys[at] = passed_key(lane, priority)
  end
  for at, times in ipairs(call('HMGET', ROOT .. 'turns', unpack(keys))) do
    self.known[keys[at]] = times
  end
end

function FairTurns:served()
  return self.new.served or self.known.served or ''
end

function FairTurns:passed(lane, priority)
  local key = passed_key(lane, priority)
  return tonumber(self.new[key] or self.known[key] or 0)
end

function FairTurns:put_passed(lane, priority, times)
  self.new[passed_key(lane, priority)] = times
end

function FairTurns:put_served(lane)
  self.new.served = lane
end

function FairTurns:write()
  for key, value in pairs(self.new) do
    local before = self.known[key]
    if tostring(value) ~= before and not (value == 0 and not before) then
      call('HSET', ROOT .. 'turns', key, value)
    end
  end
end

-- Forget how often priorities of lanes of templates were passed over that have no jobs.
local function forget_turns()
  for _, key in ipairs(call('HKEYS', ROOT .. 'turns')) do
    local lane = string.match(key, '^passed %-?%d (.*)$')
    if lane and not lanes()[lane] and ask('EXISTS', ROOT .. 'w:' .. lane) == 0 then
      call('HDEL', ROOT .. 'turns', key)
    end
  end
end

-- ---- the claims of one step

-- The lanes in which a job waits that was running in a crash, in turn.
local function suspected(served)
  local found, known = {}, {}
  for _, id in ipairs(call('ZRANGE', ROOT .. 'sw', 0, -1)) do
    local lane = find(id).lane
    if not known[lane] then
      found[#found + 1], known[lane] = lane, true
    end
  end
  table.sort(found, function(one, other)
    if (one > served) ~= (other > served) then
      return one > served
    end
    return one < other
  end)
  return found
end

-- An iterator over the turns of lanes that may start a job: those of lanes with suspects first.
function Claims.turns(names, budget, turns, homes)
  local function turn_of(lane)
    local limit = budget:limit(lane)
    local function has_jobs()
      return not LaneTurn.new(lane, names, turns, budget, homes):is_empty()
    end
    if limit and is_paused(limit) then
      note_hold(lane, 'pause', limit.paused_until, has_jobs)
      Claims.put_aside(turns, lane, limit.paused_until)
    elseif limit and budget:free(lane) > 0 then
      local turn = LaneTurn.new(lane, names, turns, budget, homes)
      return turn.fronts.present and turn
    elseif limit then
      note_hold(lane, budget:why_not(lane), nil, has_jobs)
      if budget:is_held(lane) then
        Claims.put_aside(turns, lane, huge)
      end
    end
  end
  local served, suspects, is_suspect = turns:served(), {}, {}
  for _, lane in ipairs(suspected(served)) do
    local turn = turn_of(lane)
    if turn and turn:suspect() then
      suspects[#suspects + 1], is_suspect[lane] = turn, true
    end
  end
  local at, next_lane = 0, lanes_after(served)
  return function()
    at = at + 1
    if suspects[at] then
      return suspects[at]
    end
    for lane in next_lane do
      local turn = not is_suspect[lane] and turn_of(lane)
      if turn then
        return turn
      end
    end
  end
end

-- Put a lane aside, if others were looked at in vain before it.
function Claims.put_aside(turns, lane, till, rated_till)
  turns.vain = turns.vain + 1
  if turns.vain > IN_VAIN then
    put_aside(lane, math.min(till, now + ASIDE_FOR * (1 + turns.vain % 64 / 64)), rated_till)
  end
end

-- Claim up to `room` jobs. Return the claims, when what kept a job out ends, and whether the claims
-- have STEP_BYTES.
function Claims.take(instance, info, room)
  local claims = {}
  if room <= 0 then
    return claims, nil, false
  end
  local isolation = Isolation.begin(instance)
  write_changed()
  restore(now)
  if not has_lists() then
    local due = math.min(isolation.due or huge, rated_until())
    return claims, due < huge and due or nil, false
  end
  local budget, turns = Budget.new(), FairTurns.new()
  local homes = info.affinity > 0 and Homes.new(info.affinity)
  local unseen, seen, at = Claims.turns(info.handles, budget, turns, homes), {}, 0
  local left, why, is_end, looked_at = huge, nil, false, {}
  local due = huge  -- without room no rate is waited for
  while #claims < room and isolation:has_room() and why ~= 'bytes' do
    local turn, job = not is_end and unseen() or nil, nil
    if not turn then
      at, is_end = at + 1, true
      turn = seen[at]
    end
    if not turn then
      due = math.min(budget.due or huge, rated_until())
      break
    end
    if not looked_at[turn.lane] and not turn:is_empty() then  -- it had jobs
      looked_at[turn.lane] = turn
    end
    job, why = turn:next(isolation, left)
    if job then
      turns:put_served(job.lane)
      claims[#claims + 1] = Claims.claim(job, instance, info)
      isolation:add(job)
      seen[#seen + 1] = turn
      left = math.min(left, STEP_BYTES) - bytes_of(job)
    elseif why == 'home' then
      seen[#seen + 1] = turn
    elseif why == 'isolation' then
      break
    elseif budget.refused[turn.lane] and turn.fronts.handled and budget:is_held(turn.lane) then
      Claims.put_aside(turns, turn.lane, budget.refused[turn.lane], budget.refused[turn.lane])
    end
  end
  for lane, turn in pairs(looked_at) do
    note_hold(lane, turn:is_empty() and '' or budget:why_not(lane))
  end
  turns:write()
  due = math.min(due, isolation.due or huge, homes and homes.due or huge)
  return claims, due < huge and due or nil, why == 'bytes'
end

function Claims.claim(job, instance, info)
  if job.party then
    fair.leave(job, true)
  end
  job.state, job.ready, job.instance, job.lent, job.expires = 'running', nil, instance, nil, nil
  job.fence = next_number()
  begun(job, info)
  put(job)
  return claim_of(job)
end

-- ---- what the suspects that an instance runs leave to other jobs

-- `due`: when a restriction ends; or nil.
function Isolation.begin(instance)
  local isolation = setmetatable({ instance = instance, claimed = 0, most = huge }, Isolation)
  for _, id in ipairs(ask('ZRANGE', ROOT .. 'su:' .. instance, 0, -1)) do
    isolation:restrict(find(id))
  end
  return isolation
end

-- How many jobs the instance runs. It is only read if there is a suspect.
function Isolation:running()
  self.before = self.before or run_count(self.instance) - self.claimed
  return self.before + self.claimed
end

function Isolation:has_room()
  return self.most == huge or self:running() < self.most
end

function Isolation:allows(suspect)
  return self:running() < max_runs_with(suspect) or not self:lasts(suspect)
end

function Isolation:add(job)
  self.claimed = self.claimed + 1
  if job.crashed_with then
    job.since = nil
    self:restrict(job)
    put(job)
  end
end

function Isolation:restrict(job)
  if max_runs_with(job) < self.most and self:lasts(job) then
    self.most = max_runs_with(job)
  end
end

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

-- ---- the ready lists of one lane whose handlers an instance has

-- `lists`: by priority, by entry. Of each the first FRONT jobs are read at once: no other job joins a
-- list while jobs are claimed. Instead of a page, true: it is not read. `present`: whether there was a
-- list at first; `handled`: whether the instance handles all lists. `left`: by entry, how many jobs were left to their homes: these stay in the list, before
-- all that are not read.
--
-- In a fair lane each claim lists other jobs of its owner, so all is read again after it. `weights`: of
-- its owners; `rings`: by entry, its ring.
function Fronts.new(lane, names)
  local fronts = { lane = lane, lists = { [1] = {}, [0] = {}, [-1] = {} }, left = {}, present = false,
    handled = true }
  fronts.weights, fronts.rings = fair.weights_of(lane), {}
  for entry in pairs(lists_of(lane)) do
    local priority, name, ring = parts_of(entry)
    if names[name] then
      fronts.lists[priority][entry], fronts.rings[entry], fronts.present = true, ring, true
    else
      fronts.handled = false
    end
  end
  return setmetatable(fronts, Fronts)
end

function Fronts:drop(list, entry)
  list[entry] = nil
  if not self.left[entry] then
    drop_list(self.lane, entry)
  end
end

-- The id and ready number of the first job of a list; an empty list is dropped.
function Fronts:front(list, entry)
  local page = list[entry]
  if page == true then
    local at = self.left[entry] or 0
    page = ask('ZRANGE', ready_list(self.lane, entry), at, at + FRONT - 1, 'WITHSCORES')
    page.at = 1
    list[entry] = page
    if not page[1] then
      self:drop(list, entry)
    end
  end
  return page[page.at], tonumber(page[page.at + 1] or nil)
end

-- The first job of a priority, and its list.
function Fronts:first(priority)
  local list, best, least, of = self.lists[priority], nil, nil, nil
  local heads = {}  -- by ring, of a lane with weights: {number, id, entry}
  for entry in pairs(list) do
    local id, number = self:front(list, entry)
    if id and (not best or number < least) then
      best, least, of = id, number, entry
    end
    local ring = self.rings[entry]
    if id and self.weights and (not heads[ring] or number < heads[ring][1]) then
      heads[ring] = { number, id, entry }
    end
  end
  self.shares = nil
  local others = heads['']
  if others and not find(others[2]).party then
    best, of = others[2], others[3]
  elseif next(heads, next(heads)) then
    local ring
    ring, self.shares = fair.choose(self.lane, priority, self.weights, heads)
    best, of = heads[ring][2], heads[ring][3]
  end
  return best and find(best), of
end

-- The first job of a priority is claimed, and leaves its list; or it is left to its home.
function Fronts:pop(priority, is_left)
  local list, _, entry = self.lists[priority], self:first(priority)
  local page = list[entry]
  page.at = page.at + 2
  if is_left then
    self.left[entry] = (self.left[entry] or 0) + 1
  elseif self.shares then
    fair.note_served(self.lane, priority, self.rings[entry], unpack(self.shares))
  end
  if self.weights then
    for other in pairs(list) do
      list[other] = true
    end
    return
  end
  if page.at > #page and #page < 2 * FRONT then
    self:drop(list, entry)
  elseif page.at > #page then
    list[entry] = true
  end
end

-- ---- the turn of one lane in a claim

function LaneTurn.new(lane, names, turns, budget, homes)
  turns:read(lane)
  return setmetatable({
    lane = lane, fronts = Fronts.new(lane, names), turns = turns, budget = budget, homes = homes,
    ages = budget:limit(lane).ages,
  }, LaneTurn)
end

-- Whether none of its ready jobs is left, besides those that were left to their homes.
function LaneTurn:is_empty()
  for _, priority in ipairs(PRIORITIES) do
    local list = self.fronts.lists[priority]
    for entry in pairs(list) do
      if self.fronts:front(list, entry) then
        return false
      end
    end
  end
  return true
end

-- The first job of each priority that has a job, the highest priority first.
function LaneTurn:heads()
  local heads = {}
  for _, priority in ipairs(PRIORITIES) do
    heads[#heads + 1] = self.fronts:first(priority)
  end
  return heads
end

-- The first suspect among jobs; without them, among the heads.
function LaneTurn:suspect(heads)
  for _, job in ipairs(heads or self:heads()) do
    if max_runs_with(job) < huge then
      return job
    end
  end
end

-- The job that is next in this lane, whether or not it may start.
function LaneTurn:first()
  return self:choose(self:heads())
end

function LaneTurn:choose(heads)
  local suspect = self:suspect(heads)
  if suspect then
    return suspect
  end
  local best = heads[1]
  for at = 2, #heads do
    local head, goes = heads[at], nil
    if self.ages then
      goes = self:rank(head) < self:rank(best)
    else
      goes = self.turns:passed(self.lane, head.priority) >= PASSED_OVER[head.priority]
    end
    best = goes and head or best
  end
  return best
end

-- The rank of a priority by its first job: see the module of the core about fair lines.
function LaneTurn:rank(head)
  local waits = head.why ~= 'session' and head.due or head.submitted_at
  return waits - head.priority * self.ages
end

-- How many jobs go before one that is ready, `most` at most; once only. Of its own priority they are
-- those that stand before it in the lists.
function LaneTurn:consume_before(job, most)
  local count = 0
  for _ = 1, most do
    local first = self.fronts:first(job.priority) and self:first()
    if not first or first.id == job.id then
      break
    elseif first.priority ~= job.priority or first.ready < job.ready then
      count = count + 1
    end
    self.fronts:pop(first.priority, true)
  end
  return count
end

-- The next job of this lane; or nil, and why: 'isolation' (a suspect would start if this instance ran
-- fewer jobs), 'bytes' (it is too large), 'home' (it was left to its home: ask for the job behind it).
function LaneTurn:next(isolation, most_bytes)
  local lane, turns, budget, heads = self.lane, self.turns, self.budget, self:heads()
  local job = self:choose(heads)
  if not job or budget:free(lane) <= 0 or not budget:rates_allow(job) then
    return nil
  end
  if max_runs_with(job) < huge and not isolation:allows(job) then
    return nil, 'isolation'
  end
  if most_bytes < huge and bytes_of(job) > most_bytes then
    return nil, 'bytes'
  end
  local is_left = self.homes and self.homes:keep(job)
  if is_left and budget:is_rated(lane) then
    return nil
  end
  for _, head in ipairs(is_left and {} or heads) do
    if head.priority < job.priority then
      turns:put_passed(lane, head.priority, turns:passed(lane, head.priority) + 1)
    end
  end
  budget:take(job)
  self.fronts:pop(job.priority, is_left)
  if is_left then
    return nil, 'home'
  end
  turns:put_passed(lane, job.priority, 0)
  return job
end
