-- Locks and quotas: requests of instances, which wait in lines.
--
-- l:<id> is the request: its line, its instance, its job or '', what it asks for, when it was served
-- (the fence of a lock, the time of a charge, or 0), and since when it waits or was served. The sorted
-- sets kw:<line> and kh:<line> have the requests of a line that wait and those that were served,
-- ki:<instance> those of an instance. The first that waits is served when its lock is free or the rates
-- of its quota admit it; then its instance hears of it.
--
-- The hash qu has the quotas from which something was spent: by name, the limits and the meters that
-- were applied last, as the clients give them.

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
  rates.charge(request.line, request.meters, request.costs)
  return true
end

function lines.ready_at(request)
  return rates.ready_at(request.line, request.meters, request.costs)
end
