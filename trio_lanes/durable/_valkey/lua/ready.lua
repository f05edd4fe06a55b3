-- Ready lists: the jobs that may start as far as their sessions allow it, by ready number.
--
--   r:<lane>:<priority>:<name>   a list; a sorted set, an index of `records`
--   r:<lane>:<priority>+<ring>:<name>   a list of a ring of a fair lane; the others are as well
--   ph:<lane>:<priority>:<party>        the jobs that stand for an owner on lists; see fair
--   pb:<lane>:<priority>:<name>:<party> those that are shelved behind them
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
  if job.ring and job.ring ~= '' then
    return job.priority .. '+' .. named(job.ring) .. ':' .. job.name
  end
  return LEVELS[job.priority] .. job.name
end

-- The priority, the handler's name and the ring of a list.
local function parts_of(entry)
  local priority, mark, name = string.match(entry, '^(%-?%d)([:+])(.*)$')
  local ring = ''
  if mark == '+' then
    ring, name = split(name)
  end
  return tonumber(priority), name, ring
end

-- The list of the jobs that stand for an owner; with `name`, of those behind them.
local function party_list(lane, priority, party, name)
  local of = named(lane) .. ':' .. LEVELS[priority]
  return ROOT .. (name and 'pb:' .. of .. named(name) .. ':' or 'ph:' .. of) .. party
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
