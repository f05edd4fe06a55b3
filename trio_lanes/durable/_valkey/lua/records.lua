-- Jobs, and the indexes over them.
--
-- The record of a job is a packed table in the key j:<id>. The texts that may be large have keys of
-- their own: p:<id> the payload, c:<id> the checkpoint data, o:<id> the outcome; e:<id> is a list of
-- the last events, m:<id> a hash of the messages by number.
--
-- The indexes are sorted sets. Two functions say in which of them a record is, with which score: they
-- are a function of the record, so a change of a record changes all of them, and `check` compares them.
--
-- `queued`: the indexes by which jobs are queued, claimed and ended. They are written at each change.
--
--   s:<session>                 the queue of a session, by place
--   due, sd:<session>           parked jobs, by due time; of a session, those without a place
--   run:<instance>              running jobs, by fence; of these, x: cancelled, le: their slot is
--                               lent, su: suspects that have not lent it
--   h:<lane>, want:<lane>       the runs that hold a slot, and the runs that want theirs back
--   wants                       all runs that want their slots back
--   done                        ended jobs, by the time to forget them
--
-- `listed`: the indexes of listings, orders and limits of waiting jobs, by id. They are written at the
-- end of a call, or before they are read: a job that is accepted and claimed by one call was never in
-- w:<lane>.
--
--   all, dead, failed           every job, dead jobs, failed jobs
--   w:<lane>                    waiting and parked jobs of a lane
--   si:<session>                waiting, parked and running jobs of a session
--
-- The hashes n and sl:<lane> count jobs by lane, state and name, and the queued jobs of a lane by
-- session; a field of META counts the sessions with queued jobs. Only statistics read them. They are
-- written like `listed`.

local JOBS      -- by id, as far as this call has read them; false: there is none
local SEEN      -- by id: what the indexes of `queued` and the counts have of them
local LISTED    -- by id: what the indexes of `listed` have of them
local DIRTY     -- ids of records to be written at the end of the call
local UNLISTED  -- ids of jobs whose indexes of `listed` are to be written
local COUNTS    -- by key, by field: the changes of counts, to be written at the end of the call
local PAYLOADS  -- by id, as far as this call has written or read them

at_call(function()
  JOBS, SEEN, LISTED, DIRTY, UNLISTED, COUNTS, PAYLOADS = {}, {}, {}, {}, {}, {}, {}
end)

-- What a call has read of indexes that are often asked for. `put` and `forget` keep it true; a function
-- that writes an index itself has the call read all of it again.
local SIZES   -- by session: how many jobs its queue has
local FIRSTS  -- by name of an index, `due` or `pauses`: the time of its first member; false: none
local WANTS   -- whether a run wants its slot back

local function read_again()
  SIZES, FIRSTS, WANTS = {}, {}, nil
end

at_call(read_again)

local function queue_size(session)
  SIZES[session] = SIZES[session] or call('ZCARD', ROOT .. 's:' .. session)
  return SIZES[session]
end

local function first_time(name)
  if FIRSTS[name] == nil then
    local time = call('ZRANGE', ROOT .. name, 0, 0, 'WITHSCORES')[2]
    FIRSTS[name] = time and number_of(time) or false
  end
  return FIRSTS[name]
end

local function some_want()
  if WANTS == nil then
    WANTS = call('EXISTS', ROOT .. 'wants') == 1
  end
  return WANTS
end

local ENDED = { succeeded = true, failed = true, cancelled = true }

local function queued(job)
  local state, at = job.state, {}
  if job.place then
    at[ROOT .. 's:' .. job.session] = job.place
  end
  if state == 'parked' then
    at[ROOT .. 'due'] = job.due
    if job.session and not job.place then
      at[ROOT .. 'sd:' .. job.session] = job.due
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
    elseif job.company then
      at[ROOT .. 'su:' .. job.instance] = job.fence
    end
    if job.cancel then
      at[ROOT .. 'x:' .. job.instance] = job.fence
    end
  elseif ENDED[state] then
    at[ROOT .. 'done'] = job.due
  end
  return at
end

local function listed(job)
  local id, state = tonumber(job.id), job.state
  local at, waits = { [ROOT .. 'all'] = id }, state == 'waiting' or state == 'parked'
  if job.session and (waits or state == 'running') then
    at[ROOT .. 'si:' .. job.session] = id
  end
  if waits then
    at[ROOT .. 'w:' .. job.lane] = id
  elseif state == 'dead' or state == 'failed' then
    at[ROOT .. state] = id
  end
  return at
end

local function count(key, field, by)
  local fields = COUNTS[key] or {}
  fields[field] = (fields[field] or 0) + by
  COUNTS[key] = fields
end

local function write_counts()
  for key, fields in pairs(COUNTS) do
    for field, by in pairs(fields) do
      if by ~= 0 and call('HINCRBY', key, field, by) == 0 and key ~= META then
        call('HDEL', key, field)
      end
    end
  end
  COUNTS = {}
end

local function seen(job)
  return {
    at = queued(job), place = job.place, state = job.state, lent = job.lent, ready = ready_number(job),
  }
end

local function find(id)
  local job = JOBS[id]
  if job == nil then
    local text = call('GET', ROOT .. 'j:' .. id)
    job = text and cmsgpack.unpack(text)
    JOBS[id] = job
    if job then
      job.id = id
      SEEN[id], LISTED[id] = seen(job), listed(job)
    end
  end
  return job or nil
end

local function index(id, before, at)
  for key, score in pairs(at) do
    if before[key] ~= score then
      call('ZADD', key, score, id)
    end
  end
  for key in pairs(before) do
    if not at[key] then
      call('ZREM', key, id)
    end
  end
end

local function count_changes(job, place, state)
  local was = SEEN[job.id]
  if (place ~= nil) ~= (was.place ~= nil) then
    local by, size = place and 1 or -1, SIZES[job.session]
    SIZES[job.session] = size and size + by  -- else it is read now, when the queue was changed
    if queue_size(job.session) == (place and 1 or 0) then
      count(META, 'sessions', by)
    end
    count(ROOT .. 'sl:' .. job.lane, job.session, by)
  end
  if state ~= was.state then
    local of = ':' .. named(job.lane) .. ':' .. job.name
    if was.state and not ENDED[was.state] then
      count(ROOT .. 'n', was.state .. of, -1)
    end
    if state and not ENDED[state] then
      count(ROOT .. 'n', state .. of, 1)
    end
  end
end

-- Every change of a record ends with this.
local function put(job)
  local was, new = SEEN[job.id], seen(job)
  DIRTY[job.id], UNLISTED[job.id] = true, true
  index(job.id, was.at, new.at)
  move_on_list(job, new.ready, was.ready)
  count_changes(job, job.place, job.state)
  if was.state == 'parked' or job.state == 'parked' then
    FIRSTS.due = nil
  end
  if was.lent ~= new.lent then
    WANTS = nil
  end
  SEEN[job.id] = new
end

local function insert(job, payload)
  JOBS[job.id] = job
  SEEN[job.id], LISTED[job.id] = { at = {} }, {}
  call('SET', ROOT .. 'p:' .. job.id, payload)
  PAYLOADS[job.id] = payload
  if job.key then
    call('SET', ROOT .. 'u:' .. job.key, job.id)
  end
  put(job)
end

local function forget(job)
  local id = job.id
  index(id, SEEN[id].at, {})
  index(id, LISTED[id], {})
  move_on_list(job, nil, SEEN[id].ready)
  count_changes(job, nil, nil)
  call('DEL', ROOT .. 'j:' .. id, ROOT .. 'p:' .. id, ROOT .. 'c:' .. id, ROOT .. 'o:' .. id,
    ROOT .. 'e:' .. id, ROOT .. 'm:' .. id)
  if job.key and call('GET', ROOT .. 'u:' .. job.key) == id then
    call('DEL', ROOT .. 'u:' .. job.key)
  end
  JOBS[id], SEEN[id], LISTED[id] = false, nil, nil
  DIRTY[id], UNLISTED[id] = nil, nil
end

local function write_listed()
  for id in pairs(UNLISTED) do
    local at = listed(JOBS[id])
    index(id, LISTED[id], at)
    LISTED[id] = at
  end
  UNLISTED = {}
end

local function write_records()
  write_tails()
  write_listed()
  for id in pairs(DIRTY) do
    local job = JOBS[id]
    job.id = nil
    call('SET', ROOT .. 'j:' .. id, cmsgpack.pack(job))
    job.id = id
  end
  DIRTY = {}
end

-- Whether the store has forgotten a job, or the next step will.
local function is_over(job)
  return ENDED[job.state] and job.due <= now
end

local function known(id)
  local job = find(id)
  if job and not is_over(job) then
    return job
  end
end

local function keyed(key)
  local id = call('GET', ROOT .. 'u:' .. key)
  return id and find(id) or nil
end

local function running_of(id, fence)
  local job = find(id)
  if job and job.state == 'running' and job.fence == fence then
    return job
  end
end
