-- Ready lists: the jobs that may start as far as their sessions allow it, by ready number.
--
--   r:<lane>:<priority>:<name>   a list; a sorted set
--   rn:<lane>                    the lists of a lane with jobs, as <priority>:<name>
--   lw                           the lanes that have such lists
--
-- Jobs that a call puts at the end of a list are its tail. It is written at the end of the call, or
-- before other acts than claims read a list: a job that is accepted and claimed by one call was never
-- in the sorted set.

local LEVELS = { [1] = '1:', [0] = '0:', [-1] = '-1:' }

local TAILS      -- by lane, by entry: {at, number, id, number, id...}; `at`: the place of the first
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

-- The ready number of a job; nil: it is on no list.
local function ready_number(job)
  return not job.shelf and job.ready or nil
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

local function write_list(lane, entry, ...)
  call('ZADD', ready_list(lane, entry), ...)
  call('SADD', ROOT .. 'rn:' .. lane, entry)
  if not lanes_with_lists()[lane] then
    call('SADD', ROOT .. 'lw', lane)
    WITH_JOBS[lane] = true
  end
end

local function write_tails()
  for lane, tails in pairs(TAILS) do
    for entry, tail in pairs(tails) do
      for at = tail.at, #tail, 2 * AT_ONCE do
        write_list(lane, entry, unpack(tail, at, math.min(at + 2 * AT_ONCE - 1, #tail)))
      end
    end
  end
  TAILS = {}
end

-- Forget that a list is empty.
local function drop_list(lane, entry)
  call('SREM', ROOT .. 'rn:' .. lane, entry)
  if call('EXISTS', ROOT .. 'rn:' .. lane) == 0 then
    call('SREM', ROOT .. 'lw', lane)
    lanes_with_lists()[lane] = nil
  end
end

-- The first job of a tail and its number.
local function first_of_tail(lane, entry)
  local tail = TAILS[lane] and TAILS[lane][entry]
  if tail then
    return tail[tail.at + 1], tail[tail.at]
  end
end

local function join_list(job)
  local lane, entry, number = job.lane, entry_of(job), job.ready
  if number <= LAST_BEFORE then  -- it goes to the front, or back to its old place
    write_list(lane, entry, number, job.id)
    return
  end
  TAILS[lane] = TAILS[lane] or {}
  local tail = TAILS[lane][entry] or { at = 1 }
  TAILS[lane][entry] = tail
  tail[#tail + 1] = number
  tail[#tail + 1] = job.id
end

-- Only a claim takes a job from a tail, and it takes the first; all others that leave a list were
-- written by an earlier call or before their act.
local function leave_list(job)
  local lane, entry = job.lane, entry_of(job)
  if first_of_tail(lane, entry) == job.id then
    local tail = TAILS[lane][entry]
    tail.at = tail.at + 2
  else
    call('ZREM', ready_list(lane, entry), job.id)
  end
end

-- A job has this ready number now, where it had the other; nil: none.
local function move_on_list(job, number, before)
  if number ~= before then
    if before then
      leave_list(job)
    end
    if number then
      join_list(job)
    end
  end
end
