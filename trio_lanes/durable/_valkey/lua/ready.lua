-- Ready lists: the jobs that may start as far as their sessions allow it, by ready number.
--
--   r:<lane>:<priority>:<name>   a list; a sorted set, an index of `records`
--   lists                        the lists that may have jobs, as <lane>:<priority>:<name>

local LEVELS = { [1] = '1:', [0] = '0:', [-1] = '-1:' }

local LISTS  -- by lane: its lists, as <priority>:<name>; nil: they have not been read

at_call(function()
  LISTS = nil
end)

local function ready_list(lane, entry)
  return ROOT .. 'r:' .. named(lane) .. ':' .. entry
end

local function entry_of(job)
  return LEVELS[job.priority] .. job.name
end

local function add_list(lane, entry)
  LISTS[lane] = LISTS[lane] or {}
  LISTS[lane][entry] = true
end

local function ready_lists()
  if not LISTS then
    LISTS = {}
    for _, list in ipairs(members(ROOT .. 'lists')) do
      add_list(split(list))
    end
  end
  return LISTS
end

-- Note that a list is not empty. A later act of this call reads the lists again.
local function note_list(lane, entry)
  call('SADD', ROOT .. 'lists', named(lane) .. ':' .. entry)
  LISTS = nil
end

-- Forget a list that is empty.
local function drop_list(lane, entry)
  call('SREM', ROOT .. 'lists', named(lane) .. ':' .. entry)
  if LISTS and LISTS[lane] then
    LISTS[lane][entry] = nil
    LISTS[lane] = next(LISTS[lane]) and LISTS[lane]
  end
end
