-- Locks and quotas: requests of instances, which wait in lines.
--
-- l:<id> is the request: its line, its instance, its job or '', what it asks for, when it was served
-- (the fence of a lock, the time of a charge, or 0), and since when it waits or was served. The sorted
-- sets kw:<line> and kh:<line> have the requests of a line that wait and those that were served,
-- ki:<instance> those of an instance. The first that waits is served when its lock is free or the rates
-- of its quota admit it; then its instance hears of it.
--
-- The hash qu has the quotas and templates from which something was spent: by name, the limits and the
-- meters that were applied last, as the clients give them. The sorted set qt has the quotas of templates
-- by the times from which on nothing of them is in use.

local lines = {}

function lines.request(id)
  local text = id and call('GET', ROOT .. 'l:' .. id)
  return text and cmsgpack.unpack(text) or nil
end

function lines.tell(request)
  local info = request and instance_of(request.instance)
  if info then
    tell(info.channel, request.id)
  end
end

function lines.serve(request, served)
  call('ZREM', ROOT .. 'kw:' .. request.line, request.id)
  call('ZADD', ROOT .. 'kh:' .. request.line, request.id, request.id)
  request.served, request.since = served, int(now)
  call('SET', ROOT .. 'l:' .. request.id, cmsgpack.pack(request))
  lines.tell(request)
end

-- The requests of an instance, in order.
function lines.of_instance(instance)
  local ids, found = members(ROOT .. 'ki:' .. instance), {}
  table.sort(ids)
  for place, id in ipairs(ids) do
    found[place] = lines.request(id)
  end
  return found
end

-- The key of the lock, or the name of the quota.
function lines.name_of(request)
  return string.match(request.line, '^%a+ (.*)$')
end

-- Add a request to the tail of its line.
function lines.make_request(request)
  request.id, request.served, request.since = int(next_number()), '0', int(now)
  call('SET', ROOT .. 'l:' .. request.id, cmsgpack.pack(request))
  call('ZADD', ROOT .. 'kw:' .. request.line, request.id, request.id)
  call('SADD', ROOT .. 'ki:' .. request.instance, request.id)
end

function lines.remember(name, limits, meters)
  local known = cmsgpack.pack({ limits, meters })
  if call('HGET', ROOT .. 'qu', name) ~= known then
    call('HSET', ROOT .. 'qu', name, known)
  end
end

-- The quotas and templates that are known, by name, packed.
local function all_limits()
  local all, flat = {}, call('HGETALL', ROOT .. 'qu')
  for at = 1, #flat, 2 do
    all[flat[at]] = flat[at + 1]
  end
  return all
end

-- The limits and the meters of a quota that were applied last; nil: it is unknown. And its template.
function lines.limits_of(quota, all)
  all = all or all_limits()
  local label = label_of(all, quota)
  if label then
    local limits, meters = unpack(cmsgpack.unpack(all[label]))
    return limits, cjson.decode(meters), label ~= quota and label or nil
  end
end

-- The quotas, or one, from which something was spent: {name, limits, what is in use of each,
-- the template}.
function lines.quotas(only)
  local found, all = {}, all_limits()
  local function add(name)
    local limits, meters, template = lines.limits_of(name, all)
    local levels = limits and rates.levels('quota ' .. name, meters)
    local used = not template
    for _, level in ipairs(levels or {}) do
      used = used or level[1] > 0 or only and level[3] > 0
    end
    if levels and used then
      found[#found + 1] = { name, limits, levels, template }
    end
  end
  if only then
    add(only)
    return found
  end
  for name in pairs(all) do
    add(name)
  end
  for _, name in ipairs(call('ZRANGEBYSCORE', ROOT .. 'qt', int(now), '+inf')) do
    if not all[name] then
      add(name)
    end
  end
  return found
end

-- Until when a quota cannot give at once what a request asks for, at least; nil: it can.
function lines.refused_until(request)
  local at, first = lines.ready_at(request), lines.first_of(request.line)
  if first then  -- nothing overtakes it
    return math.max(at, lines.ready_at(first), now)
  end
  return at > now and at or nil
end

function lines.answer_of(id)
  return { 0, id, lines.request(id).served }
end

-- Answer: the fence or the time of the charge, or 0, and in how many microseconds to ask again; or
-- false: the request has ended.
function lines.look(instance, id)
  local request = is_alive(instance) and lines.request(id)
  if not request then
    return { 0, false }
  end
  local due
  if request.costs and request.served == '0' then
    local first, at = lines.serve_quota(request.line)
    if first == request.id then
      due = int(at - now)
    end
    request = lines.request(request.id)
  end
  return { 0, request.served, due }
end

WRITES.served = lines.look

function lines.release(id, used)
  local request = lines.request(id)
  if not request then
    return
  end
  lines.drop(request)
  if not request.costs then
    lines.serve_lock(request.line)
    return
  end
  if request.served ~= '0' and not used then
    rates.give_back(request.line, request.meters, request.costs, tonumber(request.served))
  end
  lines.wake_first(request.line)
end

function lines.end_requests(instance)
  for _, id in ipairs(members(ROOT .. 'ki:' .. instance)) do
    lines.release(id, true)
  end
end

function lines.wake_first(line)
  lines.tell(lines.first_of(line))
end

function lines.serve_lock(line)
  local request = lines.first_of(line)
  while request do
    local holder = lines.request(call('ZRANGE', ROOT .. 'kh:' .. line, 0, 0)[1])
    if holder and not (holder.shared and request.shared) then
      return
    end
    lines.serve(request, int(next_number()))
    request = lines.first_of(line)
  end
end

-- Charge requests while the rates admit the first. Return the next, and when they will admit it.
function lines.serve_quota(line)
  local some = false
  local request = lines.first_of(line)
  while request do
    if not lines.charged(request) then
      if some then
        lines.tell(request)  -- it is the first now
      end
      return request.id, lines.ready_at(request)
    end
    some = true
    lines.serve(request, int(now))
    request = lines.first_of(line)
  end
end

-- The first request that waits. Requests of instances without a lease are dropped.
function lines.first_of(line)
  while true do
    local request = lines.request(call('ZRANGE', ROOT .. 'kw:' .. line, 0, 0)[1])
    if not request or is_alive(request.instance) then
      return request
    end
    lines.drop(request)
  end
end

function lines.drop(request)
  lines.tell(request)  -- a task may wait for it
  call('DEL', ROOT .. 'l:' .. request.id)
  call('ZREM', ROOT .. 'kw:' .. request.line, request.id)
  call('ZREM', ROOT .. 'kh:' .. request.line, request.id)
  call('SREM', ROOT .. 'ki:' .. request.instance, request.id)
end

-- Charge a request if the rates of its quota admit it now.
function lines.charged(request)
  if lines.ready_at(request) > now then
    return false
  end
  lines.charge(request.line, request.meters, request.costs)
  return true
end

-- Charge the limits of a quota.
function lines.charge(line, meters, costs)
  local name, at = lines.name_of({ line = line }), rates.charge(line, meters, costs)
  call('ZREMRANGEBYSCORE', ROOT .. 'qt', '-inf', '(' .. int(now))
  if at and call('HEXISTS', ROOT .. 'qu', name) == 0 then  -- it is of a template
    call('ZADD', ROOT .. 'qt', 'GT', int(math.min(2 ^ 53, at)), name)
  end
end

function lines.ready_at(request)
  return rates.ready_at(request.line, request.meters, request.costs, true)
end
