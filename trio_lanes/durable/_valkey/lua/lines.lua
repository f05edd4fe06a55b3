-- Locks and quotas: requests of instances, which wait in lines.
--
-- l:<id> is the request: its line, its instance, its job or '', what it asks for, when it was served
-- (the fence of a lock, the time of a charge, or 0), and since when it waits or was served. The sorted
-- sets kw:<line> and kh:<line> have the requests of a line that wait and those that were served,
-- ki:<instance> those of an instance. The first that waits is served when its lock is free or the rates
-- of its quota admit it; then its instance is told.

local LINES = {}

function LINES.request(id)
  local text = id and call('GET', ROOT .. 'l:' .. id)
  return text and cmsgpack.unpack(text) or nil
end

function LINES.tell(request)
  local info = request and instance_of(request.instance)
  if info then
    tell(info.channel, request.id)
  end
end

function LINES.forget(request)
  LINES.tell(request)  -- a task may wait for it
  call('DEL', ROOT .. 'l:' .. request.id)
  call('ZREM', ROOT .. 'kw:' .. request.line, request.id)
  call('ZREM', ROOT .. 'kh:' .. request.line, request.id)
  call('SREM', ROOT .. 'ki:' .. request.instance, request.id)
end

-- The first request that waits. Requests of instances without a lease are dropped.
function LINES.first(line)
  while true do
    local request = LINES.request(call('ZRANGE', ROOT .. 'kw:' .. line, 0, 0)[1])
    if not request or is_alive(request.instance) then
      return request
    end
    LINES.forget(request)
  end
end

function LINES.serve(request, served)
  call('ZREM', ROOT .. 'kw:' .. request.line, request.id)
  call('ZADD', ROOT .. 'kh:' .. request.line, request.id, request.id)
  request.served, request.since = served, int(now)
  call('SET', ROOT .. 'l:' .. request.id, cmsgpack.pack(request))
  LINES.tell(request)
end

-- The requests of an instance, in order.
function LINES.of_instance(instance)
  local ids, found = members(ROOT .. 'ki:' .. instance), {}
  table.sort(ids)
  for place, id in ipairs(ids) do
    found[place] = LINES.request(id)
  end
  return found
end

-- The key of the lock, or the name of the quota.
function LINES.name_of(request)
  return string.match(request.line, '^%a+:%d+:(.*)$')
end

-- Add a request to the tail of its line.
function LINES.stand(request)
  request.id, request.served, request.since = int(next_number()), '0', int(now)
  call('SET', ROOT .. 'l:' .. request.id, cmsgpack.pack(request))
  call('ZADD', ROOT .. 'kw:' .. request.line, request.id, request.id)
  call('SADD', ROOT .. 'ki:' .. request.instance, request.id)
end

function LINES.serve_lock(line)
  local request = LINES.first(line)
  while request do
    local holder = LINES.request(call('ZRANGE', ROOT .. 'kh:' .. line, 0, 0)[1])
    if holder and not (holder.shared and request.shared) then
      return
    end
    LINES.serve(request, int(next_number()))
    request = LINES.first(line)
  end
end

-- Charge a request if the rates of its quota admit it now.
function LINES.charged(request)
  if meters_ready_at(request.line, request.meters, request.costs) > now then
    return false
  end
  charge_meters(request.line, request.meters, request.costs)
  return true
end

-- Charge requests while the rates admit the first. Return the next, and when they will admit it.
function LINES.serve_quota(line)
  local some = false
  local request = LINES.first(line)
  while request do
    if not LINES.charged(request) then
      if some then
        LINES.tell(request)  -- it is the first now
      end
      return request.id, meters_ready_at(line, request.meters, request.costs)
    end
    some = true
    LINES.serve(request, int(now))
    request = LINES.first(line)
  end
end

function LINES.release(id, used)
  local request = LINES.request(id)
  if not request then
    return
  end
  local line = request.line
  LINES.forget(request)
  if not request.costs then
    LINES.serve_lock(line)
    return
  end
  if request.served ~= '0' and not used then
    give_back_to(line, request.meters, tonumber(request.served), request.costs)
  end
  LINES.tell(LINES.first(line))
end
