-- Ready lists: the jobs that may start as far as their sessions allow it, by ready number.
--
--   r:<lane>:<priority>:<name>   a list; a sorted set
--   rn:<lane>                    the lists of a lane with jobs, as <priority>:<name>
--   lw                           the lanes that have such lists
--
-- The sets are indexes of `records`. The ready jobs that a call has accepted are in tails until they are
-- written: so a job that is accepted and claimed by one call was never in a sorted set.

local LEVELS = { [1] = '1:', [0] = '0:', [-1] = '-1:' }

local TAILS      -- by lane, by entry: {at, id...}: accepted jobs that are not written; `at`: the first
local WITH_JOBS  -- the lanes in lw, once it has been read

at_call(function()
  TAILS, WITH_JOBS = {}, nil
end)

local function ready_list(lane, entry)
  return ROOT .. 'r:' .. named(lane) .. ':' .. entry
end

local function entry_of(job)
  return LEVELS[job.priority] .. job.name
end

local function lanes_with_lists()
  if not WITH_JOBS then
    WITH_JOBS = {}
    for _, lane in ipairs(members(ROOT .. 'lw')) do
      WITH_JOBS[lane] = true
    end
  end
  return WITH_JOBS
end

-- The lanes that may have ready jobs.
local function ready_lanes()
  local found = {}
  for lane in pairs(lanes_with_lists()) do
    found[#found + 1] = lane
  end
  for lane in pairs(TAILS) do
    if not WITH_JOBS[lane] then
      found[#found + 1] = lane
    end
  end
  return found
end

-- Note that a list is not empty.
local function note_list(lane, entry)
  call('SADD', ROOT .. 'rn:' .. lane, entry)
  if not lanes_with_lists()[lane] then
    call('SADD', ROOT .. 'lw', lane)
    WITH_JOBS[lane] = true
  end
end

-- Forget that a list is empty.
local function drop_list(lane, entry)
  call('SREM', ROOT .. 'rn:' .. lane, entry)
  if call('EXISTS', ROOT .. 'rn:' .. lane) == 0 then
    call('SREM', ROOT .. 'lw', lane)
    lanes_with_lists()[lane] = nil
  end
end

-- How many jobs of its lane are before a job on ready lists: PAGE at most. All lists are written.
local function ready_before(job)
  local before = 0
  for _, entry in ipairs(members(ROOT .. 'rn:' .. job.lane)) do
    local priority = tonumber(string.match(entry, '^-?%d'))
    local ends = priority > job.priority and '+inf' or '(' .. int(job.ready)
    if priority >= job.priority then
      before = before + call('ZCOUNT', ready_list(job.lane, entry), '-inf', ends)
    end
  end
  return math.min(before, 1000)
end

local function join_tail(job)
  local lane, entry = job.lane, entry_of(job)
  TAILS[lane] = TAILS[lane] or {}
  local tail = TAILS[lane][entry] or { at = 1 }
  TAILS[lane][entry] = tail
  tail[#tail + 1] = job.id
end

-- The first job of a tail, and the tail.
local function first_of_tail(lane, entry)
  local tail = TAILS[lane] and TAILS[lane][entry]
  if tail then
    return tail[tail.at], tail
  end
end
