-- Ready lists: the jobs that may start as far as their sessions allow it, by ready number.
--
--   r:<lane>:<priority>:<name>   a list; a sorted set, an index of `records`
--   r:<lane>:<priority>+<ring>:<name>   a list of a ring of a fair lane; the others are as well
--   ph:<lane>:<priority>:<party>        the jobs that stand for an owner on lists; see fair
--   pb:<lane>:<priority>:<name>:<party> those that are shelved behind them
--   lists:<lane>                 the lists of a lane that may have jobs, as <priority>:<name>
--   lists                        the lanes with such lists: a sorted set in the order of their names
--   aside                        those of them that cannot start a job, by when a claim looks at them
--                                again: they are not in `lists`. A change of one of their jobs, and of
--                                any limit, ends it before. Of these, rated: rates refuse a start, by
--                                when they allow it

local LEVELS = { [1] = '1:', [0] = '0:', [-1] = '-1:' }

local LANES = 50  -- of how many lanes the names are read at once

local LISTS  -- by lane: its lists, as far as they have been read
local HAS_ASIDE  -- whether a lane is put aside; nil: it is not known

at_call(function()
  LISTS, HAS_ASIDE = {}, nil
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

local function lists_of(lane)
  if not LISTS[lane] then
    LISTS[lane] = {}
    for _, entry in ipairs(members(ROOT .. 'lists:' .. lane)) do
      LISTS[lane][entry] = true
    end
  end
  return LISTS[lane]
end

local function has_lists()
  return call('EXISTS', ROOT .. 'lists') == 1
end

local function put_aside(lane, till, rated_till)
  if call('ZREM', ROOT .. 'lists', lane) == 1 then
    call('ZADD', ROOT .. 'aside', till, lane)
    if rated_till then
      call('ZADD', ROOT .. 'rated', rated_till, lane)
    end
    HAS_ASIDE = true
  end
end

local function has_aside()
  if HAS_ASIDE == nil then
    HAS_ASIDE = call('EXISTS', ROOT .. 'aside') == 1
  end
  return HAS_ASIDE
end

-- Put a lane back into the turns, since its jobs change.
local function touch(lane)
  if has_aside() and call('ZREM', ROOT .. 'aside', lane) == 1 then
    call('ZREM', ROOT .. 'rated', lane)
    if call('EXISTS', ROOT .. 'lists:' .. lane) == 1 then
      call('ZADD', ROOT .. 'lists', 0, lane)
    end
  end
end

-- Put lanes back whose time has come.
local function restore(now)
  for _, lane in ipairs(has_aside() and call('ZRANGEBYSCORE', ROOT .. 'aside', '-inf', now) or {}) do
    touch(lane)
  end
end

-- When rates allow the first start of a lane that is put aside.
local function rated_until()
  local first = has_aside() and call('ZRANGE', ROOT .. 'rated', 0, 0, 'WITHSCORES') or {}
  return number_of(first[2] or 'inf')
end

-- An iterator over the lanes that may have ready jobs, in turn: those behind a name, then the others.
local function lanes_after(name)
  local from, to, page, at = '(' .. name, '+', nil, 0
  return function()
    at = at + 1
    while not page or not page[at] do
      if page and #page < LANES then
        if to ~= '+' then
          return nil
        end
        from, to = '-', '[' .. name
      end
      page, at = call('ZRANGEBYLEX', ROOT .. 'lists', from, to, 'LIMIT', 0, LANES), 1
    end
    from = '(' .. page[at]
    return page[at]
  end
end

-- Note that a list is not empty.
local function note_list(lane, entry)
  if call('SADD', ROOT .. 'lists:' .. lane, entry) == 1 then
    call('ZADD', ROOT .. 'lists', 0, lane)
    LISTS[lane] = nil
  end
end

-- Forget a list that is empty.
local function drop_list(lane, entry)
  call('SREM', ROOT .. 'lists:' .. lane, entry)
  if call('EXISTS', ROOT .. 'lists:' .. lane) == 0 then
    call('ZREM', ROOT .. 'lists', lane)
  end
  LISTS[lane] = nil
end
