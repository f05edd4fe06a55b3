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
--   r:<lane>:<priority>:<name>  a ready list, by ready number; rn:<lane> names the lists with jobs
--   due, sd:<session>           parked jobs, by due time; of a session, those without a place
--   run:<instance>              running jobs, by fence; of these, x: cancelled, le: their slot is
--                               lent, su: suspects that have not lent it
--   h:<lane>, want:<lane>       the runs that hold a slot, and the runs that want theirs back
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
-- The hashes n and sl:<lane> count jobs by lane, state and name, all sessions with queued jobs, and the
-- queued jobs of a lane by session. Only statistics read them. They are written like `listed`.

local JOBS      -- by id, as far as this call has read them; false: there is none
local SEEN      -- by id: what the indexes of `queued` and the counts have of them
local LISTED    -- by id: what the indexes of `listed` have of them
local DIRTY     -- ids of records to be written at the end of the call
local UNLISTED  -- ids of jobs whose indexes of `listed` are to be written
local COUNTS    -- by key, by field: the changes of counts, to be written at the end of the call
local NOTED     -- by key: the ready lists that are known to be in rn:<lane>
local PAYLOADS  -- by id, as far as this call has written or read them

at_call(function()
  JOBS, SEEN, LISTED, DIRTY, UNLISTED, COUNTS, NOTED, PAYLOADS = {}, {}, {}, {}, {}, {}, {}, {}
end)

local ENDED = { succeeded = true, failed = true, cancelled = true }

local LEVELS = { [1] = '1:', [0] = '0:', [-1] = '-1:' }

local function ready_list(lane, entry)
  return ROOT .. 'r:' .. named(lane) .. ':' .. entry
end

local function entry_of(job)
  return LEVELS[job.priority] .. job.name
end

local function queued(job)
  local state, at = job.state, {}
  if job.place then
    at[ROOT .. 's:' .. job.session] = job.place
  end
  if job.ready and not job.shelf then
    at[ready_list(job.lane, entry_of(job))] = job.ready
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
      at[ROOT .. 'want:' .. job.lane] = job.fence
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

-- Note that a ready list has jobs.
local function note_list(lane, entry)
  local key = ready_list(lane, entry)
  if not NOTED[key] then
    NOTED[key] = true
    call('SADD', ROOT .. 'rn:' .. lane, entry)
    call('SADD', ROOT .. 'lw', lane)
  end
end

-- Note that a ready list is empty.
local function drop_list(lane, entry)
  NOTED[ready_list(lane, entry)] = nil
  call('SREM', ROOT .. 'rn:' .. lane, entry)
  if call('EXISTS', ROOT .. 'rn:' .. lane) == 0 then
    call('SREM', ROOT .. 'lw', lane)
  end
end

local function count(key, field, by)
  local fields = COUNTS[key] or {}
  fields[field] = (fields[field] or 0) + by
  COUNTS[key] = fields
end

local function write_counts()
  for key, fields in pairs(COUNTS) do
    for field, by in pairs(fields) do
      if by ~= 0 and call('HINCRBY', key, field, by) == 0 then
        call('HDEL', key, field)
      end
    end
  end
  COUNTS = {}
end

local function seen(job)
  return {
    at = queued(job), place = job.place, state = job.state, ready = job.ready and not job.shelf,
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
    local by = place and 1 or -1
    if call('ZCARD', ROOT .. 's:' .. job.session) == (place and 1 or 0) then
      count(ROOT .. 'n', 'sessions', by)
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
  local new = seen(job)
  DIRTY[job.id], UNLISTED[job.id] = true, true
  index(job.id, SEEN[job.id].at, new.at)
  if new.ready and not SEEN[job.id].ready then
    note_list(job.lane, entry_of(job))
  end
  count_changes(job, job.place, job.state)
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
