-- Selections: the jobs that a listing or an order is for, read in pages.
--
-- They have the fields of Selection in Python that are given; `states` is a set.

local PAGE = 1000

local function is_selected(job, of)
  return of.states[job.state]
    and (not of.lane or job.lane == of.lane)
    and (not of.session or job.session == of.session)
    and (not of.name or job.name == of.name)
    and (not of.error or job.error == of.error)
    and (not of.since or job.submitted_at >= of.since)
    and (not of['until'] or job.submitted_at < of['until'])
end

-- The sorted sets, by id, that have all jobs of a selection.
local function sets_of(of)
  local keys, unended, waits = {}, true, true
  for state in pairs(of.states) do
    waits = waits and (state == 'waiting' or state == 'parked')
    unended = unended and (state == 'waiting' or state == 'parked' or state == 'running')
    keys[#keys + 1] = (state == 'dead' or state == 'failed') and state or 'all'
  end
  if of.session and unended then
    return { 'si:' .. of.session }
  elseif of.lane and waits then
    return { 'w:' .. of.lane }
  end
  for _, key in ipairs(keys) do
    if key == 'all' then
      return { 'all' }
    end
  end
  return keys
end

-- Up to `most` jobs of a selection with ids above `after`, in order, and the id after which the next
-- page begins; false: there are no more. At most PAGE jobs of each set are read.
local function page_of(of, after, most)
  if of.id then
    local job = of.id > tonumber(after) and known(int(of.id))
    return job and is_selected(job, of) and { job } or {}, false
  end
  local ids, up_to = {}, huge
  for _, key in ipairs(sets_of(of)) do
    local page = ask('ZRANGEBYSCORE', ROOT .. key, '(' .. after, '+inf', 'LIMIT', 0, PAGE)
    if #page == PAGE then
      up_to = math.min(up_to, tonumber(page[#page]))
    end
    for _, id in ipairs(page) do
      ids[#ids + 1] = id
    end
  end
  table.sort(ids, function(one, other)
    return tonumber(one) < tonumber(other)
  end)
  local jobs = {}
  for _, id in ipairs(ids) do
    local job = tonumber(id) <= up_to and known(id)
    if job and is_selected(job, of) then
      jobs[#jobs + 1] = job
      if #jobs == most then
        return jobs, id
      end
    end
  end
  return jobs, up_to < huge and int(up_to)
end
