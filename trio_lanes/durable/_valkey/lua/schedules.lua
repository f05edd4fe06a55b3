-- Schedules: they are set, fired, paused and removed.
--
-- The hash sc has the record of each by its number: {id, name, version, data, times, next, last, last_id,
-- skipped, in_row, refused}, packed; `in_row` and `refused` may be missing; `version` is another number each time that it is set, `data` is the client's text,
-- `times` what its due times follow from. The hash sn has the numbers by name, the sorted set sk all numbers, and sf those of the schedules that are not paused,
-- by the next due time, which is Unix time. The field `fires` of META is the first of these times.

local MOST = 100  -- how many schedules one answer has

-- Functions that are called before the place that they have in schedules.py, too.
local put, note_first

local function records_of(ids)
  local found = {}
  for at, text in ipairs(#ids > 0 and call('HMGET', ROOT .. 'sc', unpack(ids)) or {}) do
    found[at] = cmsgpack.unpack(text)
  end
  return found
end

-- With a `version`, if it is that one; '0' is that of a record without.
local function record_of(name, version)
  local id = call('HGET', ROOT .. 'sn', name)
  local of = id and records_of({ id })[1]
  return of and (not version or (of.version or '0') == version) and of or nil
end

-- `cost`, `times`: JSON; the cost may be ''.
function WITH_TICKET.put_schedule(schedule, lane, cost, times, due, data)
  if not limit_of(lane) then
    return unknown_lane(lane)
  end
  if cost ~= '' then
    local refused = Budget.new():check_units(lane, cjson.decode(cost))
    if refused then
      return refused
    end
  end
  local old = record_of(schedule)
  local version = int(next_number())
  local new = old or { id = version, name = schedule, next = tonumber(due), skipped = 0 }
  if new.next and new.times ~= times then
    new.next = tonumber(due)
  end
  new.version, new.times, new.data, new.refused = version, times, data, nil
  put(new)
  return { 0 }
end

GROWS.put_schedule = true

-- Arguments: the name, the version, the due time, the next, that of the last job, how many are skipped, what
-- happens to jobs that overlap, the outcome of the job before, why the jobs were refused; then as of
-- `enqueue`. Answer: whether it was due.
function WITH_TICKET.fire_schedule(arguments)
  local name, version, due, following, last, skipped, overlap, outcome, why = unpack(arguments, 1, 9)
  local of = record_of(name, version)
  if not of or of.next ~= tonumber(due) then
    return { 0, 0 }
  end
  local before = of.last_id and find(of.last_id)
  if before and (ENDED[before.state] or before.state == 'dead') then
    before = nil
  end
  local jobs = {}
  for at = 10, #arguments do
    jobs[at - 9] = arguments[at]
  end
  local in_row, refused = of.in_row or 0, given(why) or of.refused
  if before and overlap == 'skip' then
    if #jobs > 0 then
      in_row, refused = in_row + 1, nil
    end
    skipped, jobs = skipped + #jobs / JOB_FIELDS, {}
  end
  local ids = WITH_TICKET.enqueue(jobs)
  if ids[1] ~= 0 then
    return ids
  end
  if #ids > 1 then
    if before and overlap == 'cancel' then
      WITH_TICKET.cancel(before.id, outcome, '1')
    end
    of.last, of.last_id = tonumber(last), ids[#ids]
    in_row, refused = 0, nil
  end
  of.next, of.skipped = tonumber(following), of.skipped + skipped
  of.in_row, of.refused = in_row, refused
  put(of)
  return { 0, 1 }
end

GROWS.fire_schedule = true
LISTED.fire_schedule = true

-- `next_due`: that of a schedule that is resumed; '': it is paused.
function WITH_TICKET.pause_schedule(schedule, version, next_due)
  local of = record_of(schedule, version)
  if of and (next_due == '' or not of.next) then
    of.next = tonumber(next_due)
    put(of)
  end
  return { 0, of and 1 or 0 }
end

function WITH_TICKET.drop_schedule(schedule)
  local of = record_of(schedule)
  if of then
    call('HDEL', ROOT .. 'sc', of.id)
    call('HDEL', ROOT .. 'sn', schedule)
    call('ZREM', ROOT .. 'sk', of.id)
    call('ZREM', ROOT .. 'sf', of.id)
    note_first()
  end
  return { 0, of and 1 or 0 }
end

-- `schedule`: a name; '': all; `after`: a number; '': those that are due, or the first that will be.
-- Answer: the Unix time, and the records as JSON.
function READS.schedules_of(schedule, after)
  local name, time, found = given(schedule), now - (meta.offset or 0)
  if name then
    found = { record_of(name) }
  elseif after ~= '' then
    after = '(' .. after
    found = records_of(call('ZRANGEBYSCORE', ROOT .. 'sk', after, '+inf', 'LIMIT', 0, MOST))
  else
    local due = call('ZRANGEBYSCORE', ROOT .. 'sf', '-inf', time, 'LIMIT', 0, MOST)
    found = records_of(#due > 0 and due or call('ZRANGE', ROOT .. 'sf', 0, 0))
  end
  return { 0, int(time), json(found) }
end

function put(of)
  call('HSET', ROOT .. 'sc', of.id, cmsgpack.pack(of))
  call('HSET', ROOT .. 'sn', of.name, of.id)
  call('ZADD', ROOT .. 'sk', of.id, of.id)
  if of.next then
    call('ZADD', ROOT .. 'sf', of.next, of.id)
  else
    call('ZREM', ROOT .. 'sf', of.id)
  end
  note_first()
end

function note_first()
  local first = tonumber(call('ZRANGE', ROOT .. 'sf', 0, 0, 'WITHSCORES')[2])
  if first == meta.fires then
    return
  elseif not first then
    call('HDEL', META, 'fires')
  else
    call('HSET', META, 'fires', first)
    SOON = SOON or first < (meta.fires or huge)
  end
  meta.fires = first
end
