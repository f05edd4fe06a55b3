-- Jobs, and the indexes over them.
--
-- The record of a job is a packed table in the key j:<id>. The texts that may be large have keys of
-- their own: p:<id> the payload, c:<id> the checkpoint data, o:<id> the outcome; e:<id> is a list of
-- the last events, m:<id> a hash of the messages by number.
--
-- The indexes are sorted sets. `indexes` says in which of them a record is, with which score. It is a
-- function of the record, so a change of a record changes all of them, and `check` compares them.
--
--   all, dead, failed           every job, dead jobs, failed jobs
--   s:<session>                 the queue of a session, by place
--   si:<session>                waiting, parked and running jobs of a session, by id
--   w:<lane>                    waiting and parked jobs of a lane, by id
--   due                         parked jobs, by due time, and jobs that expire, by that time if it is
--                               earlier
--   sd:<session>                parked jobs of a session without a place, by due time
--   at                          delayed jobs with a time of the wall clock, by the offset they have
--                               followed
--   run:<instance>              running jobs, by fence; of these, x: cancelled, le: their slot is
--                               lent, su: suspects that have not lent it
--   sw                          waiting jobs that were running in a crash, by id
--   h:<lane>, want:<lane>       the runs that hold a slot, and the runs that want theirs back
--   wants                       all runs that want their slots back
--   k:<key>                     jobs with that key of a Coalesce that have not ended: by -1 if none has
--                               claimed it, else by id
--   done                        ended jobs, by the time to forget them
--   r:, ph:, pb:                ready jobs, by ready number (see ready)
--
-- The hashes n and sl:<lane> count jobs by lane, state and name, and the queued jobs of a lane by
-- session; the hash ends counts the ends of jobs by state, and lane or template; a field of META counts the
-- sessions with queued jobs. Only statistics read them.
--
-- Changes of jobs are written together: at the end of the call, or before a function reads an index, with
-- `ask`. So the runs that a call ends leave run:<instance> by one command.
--
--             what it holds                           when it, or the server, is stale
--   JOBS      the records read, by id; false: none    never
--   WAS       by id: {job, at, state, placed, lent,   never: at and state as the server has them;
--             expires}                                the others as at the last `put`
--   CHANGED   ids of jobs to be written               the server: until `ask`
--   COUNTS    by key, by field: changes of counts     the server: until `write_counts`
--
-- If each change is written at once, a job with a hundred in flight takes the server twice as many
-- commands, and a third more time.

local JOBS, WAS, CHANGED, COUNTS

at_call(function()
  JOBS, WAS, CHANGED, COUNTS = {}, {}, {}, {}
end)

-- ---- indexes and counts

local ENDED = { succeeded = true, failed = true, cancelled = true, expired = true }
local WITHOUT_RESULT = { failed = true, dead = true, cancelled = true, expired = true }

-- A job that is forgotten has no state.
local function indexes(job)
  local state, at = job.state, {}
  if not state then
    return at
  end
  local id, waits = tonumber(job.id), state == 'waiting' or state == 'parked'
  at[ROOT .. 'all'] = id
  if job.place then
    at[ROOT .. 's:' .. job.session] = job.place
  end
  if job.session and (waits or state == 'running') then
    at[ROOT .. 'si:' .. job.session] = id
  end
  if waits then
    at[ROOT .. 'w:' .. job.lane] = id
    if state == 'parked' or job.expires then
      at[ROOT .. 'due'] = math.min(state == 'parked' and job.due or huge, job.expires or huge)
    end
  end
  if state == 'waiting' and job.crashed_with then
    at[ROOT .. 'sw'] = id
  end
  if job.ready and not job.shelf then
    at[ready_list(job.lane, entry_of(job))] = job.ready
  end
  if job.party then
    at[party_list(job.lane, job.priority, job.party, job.shelf and job.name)] = job.ready
  end
  if job.coalesce then
    at[ROOT .. 'k:' .. job.coalesce] = job.fence and id or -1
  end
  if state == 'parked' then
    if job.session and not job.place then
      at[ROOT .. 'sd:' .. job.session] = job.due
    end
    if job.why == 'delay' then
      at[ROOT .. 'at'] = job.followed
    end
  elseif state == 'running' then
    at[ROOT .. 'run:' .. job.instance] = job.fence
    if not job.lent then
      at[ROOT .. 'h:' .. job.lane] = job.fence
    elseif job.lent == 2 then
      at[ROOT .. 'want:' .. job.lane], at[ROOT .. 'wants'] = job.fence, job.fence
    end
    if job.lent == 1 then
      at[ROOT .. 'le:' .. job.instance] = job.fence
    elseif job.crashed_with then
      at[ROOT .. 'su:' .. job.instance] = job.fence
    end
    if job.cancel then
      at[ROOT .. 'x:' .. job.instance] = job.fence
    end
  elseif ENDED[state] then
    at[ROOT .. 'done'] = job.due
  end
  if state == 'dead' or state == 'failed' then
    at[ROOT .. state] = id
  end
  return at
end

local function count(key, field, by)
  local fields = COUNTS[key] or {}
  fields[field] = (fields[field] or 0) + by
  COUNTS[key] = fields
end

local function count_state(job, state, by)
  if state and not ENDED[state] then
    count(ROOT .. 'n', state .. ':' .. named(job.lane) .. ':' .. job.name, by)
  end
end

local function write_changed()
  local added, removed, jobs = {}, {}, {}
  for id in pairs(CHANGED) do
    local was = WAS[id]
    local job, before = was.job, was.at
    local at = indexes(job)
    for key, score in pairs(at) do
      if before[key] ~= score then
        local words = added[key]
        if words then
          local size = #words
          words[size + 1], words[size + 2] = score, id
        else
          added[key], jobs[key] = { score, id }, job
        end
      end
    end
    for key in pairs(before) do
      if not at[key] then
        local ids_of = removed[key]
        if ids_of then
          ids_of[#ids_of + 1] = id
        else
          removed[key] = { id }
        end
      end
    end
    if was.state ~= job.state then
      count_state(job, was.state, -1)
      count_state(job, job.state, 1)
    end
    was.at, was.state = at, job.state
    if job.state then
      job.id = nil
      put_text(ROOT .. 'j:' .. id, cmsgpack.pack(job))
      job.id = id
    end
  end
  CHANGED = {}
  for key, words in pairs(removed) do
    call_in_parts('ZREM', key, words)
  end
  for key, words in pairs(added) do
    call_in_parts('ZADD', key, words)
    local job = jobs[key]
    if job.ready and key == ready_list(job.lane, entry_of(job)) then
      note_list(job.lane, entry_of(job))
    end
  end
end

local function ask(command, key, ...)
  write_changed()
  return call(command, key, ...)
end

-- What a call has read of indexes that are often asked for. `put` keeps it true; a function that writes
-- an index itself has the call read all of it again.
local SIZES   -- by session: how many jobs its queue has
local FIRSTS  -- by name of an index, `due` or `pauses`: the time of its first member; false: none
local SLOT_REQUESTS   -- whether a run wants its slot back

local function read_again()
  write_changed()
  SIZES, FIRSTS, SLOT_REQUESTS = {}, {}, nil
end

at_call(read_again)

-- It is read before the call changes the queue.
local function queue_size(session)
  local size = SIZES[session]
  if not size then
    size = call('ZCARD', ROOT .. 's:' .. session)
    SIZES[session] = size
  end
  return size
end

local function first_time(name)
  if FIRSTS[name] == nil then
    local time = ask('ZRANGE', ROOT .. name, 0, 0, 'WITHSCORES')[2]
    FIRSTS[name] = time and number_of(time) or false
  end
  return FIRSTS[name]
end

local function has_slot_requests()
  if SLOT_REQUESTS == nil then
    SLOT_REQUESTS = ask('EXISTS', ROOT .. 'wants') == 1
  end
  return SLOT_REQUESTS
end

local function write_counts()
  write_changed()
  for key, fields in pairs(COUNTS) do
    for field, by in pairs(fields) do
      if by ~= 0 and call('HINCRBY', key, field, by) == 0 and key ~= META then
        call('HDEL', key, field)
      end
    end
  end
  COUNTS = {}
end

-- ---- records

local function add_record(id, text)
  local job = text and cmsgpack.unpack(text)
  JOBS[id] = job
  if job then
    job.id = id
    WAS[id] = {
      job = job, at = indexes(job), state = job.state, placed = job.place ~= nil, lent = job.lent,
      expires = job.expires,
    }
  end
end

local function find(id)
  if JOBS[id] == nil then
    add_record(id, call('GET', ROOT .. 'j:' .. id))
  end
  return JOBS[id] or nil
end

-- Read records that `find` will be asked for.
local function find_all(ids)
  local keys, unknown = {}, {}
  for _, id in ipairs(ids) do
    if JOBS[id] == nil then
      unknown[#unknown + 1] = id
      keys[#keys + 1] = ROOT .. 'j:' .. id
    end
  end
  read_each(keys, function(at, text) add_record(unknown[at], text) end)
end

local function note_place(job, was)
  local size, by = queue_size(job.session), was.placed and -1 or 1
  SIZES[job.session] = size + by
  if size == 0 or size + by == 0 then
    count(META, 'sessions', by)
  end
  count(ROOT .. 'sl:' .. job.lane, job.session, by)
  was.placed = not was.placed
end

-- Every change of a record ends with this. Between a change and this, no index may be asked for that the
-- change concerns: it would be written half changed.
local function put(job)
  local was = WAS[job.id]
  CHANGED[job.id] = true
  touch(job.lane)
  if (job.place ~= nil) ~= was.placed then
    note_place(job, was)
  end
  if was.state == 'parked' or job.state == 'parked' or was.expires ~= job.expires then
    FIRSTS.due, was.expires = nil, job.expires
  end
  if was.lent ~= job.lent then
    SLOT_REQUESTS, was.lent = nil, job.lent
  end
end

local function insert(job, payload)
  local id = job.id
  JOBS[id], WAS[id] = job, { job = job, at = {}, placed = false }
  put_text(ROOT .. 'p:' .. id, payload)
  if job.key then
    put_text(ROOT .. 'u:' .. job.key, id)
  end
  put(job)
end

local function forget(job)
  local id = job.id
  job.state, job.place, job.ready = nil, nil, nil
  put(job)
  for _, kind in ipairs({ 'j:', 'p:', 'c:', 'o:', 'e:', 'm:' }) do
    delete_text(ROOT .. kind .. id)
  end
  if job.key and text_of(ROOT .. 'u:' .. job.key) == id then
    delete_text(ROOT .. 'u:' .. job.key)
  end
  JOBS[id] = false
end

local function coalesced(key, begun)
  for _, id in ipairs(ask('ZRANGE', ROOT .. 'k:' .. key, 0, 1)) do
    if (find(id).fence ~= nil) == begun then
      return find(id)
    end
  end
end

local function keyed(key)
  local id = text_of(ROOT .. 'u:' .. key)
  return id and find(id) or nil
end
