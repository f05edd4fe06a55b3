-- The acts of locks and quotas.

-- The hash qu has the quotas from which something was spent: by name, the limits and the meters that
-- were applied last, as the clients give them.
local function remember(name, limits, meters)
  local known = cmsgpack.pack({ limits, meters })
  if call('HGET', ROOT .. 'qu', name) ~= known then
    call('HSET', ROOT .. 'qu', name, known)
  end
end

-- Arguments: the instance, the key, whether it is shared, the job of the run that asks, or ''. Answer:
-- the request and its fence, or 0; or false: the instance has no lease.
local function acquire(arguments)
  if not is_alive(arguments[1]) then
    return { 0, false }
  end
  local request = {
    line = 'lock:' .. named(arguments[2]), instance = arguments[1], shared = arguments[3] == '1',
    job = arguments[4],
  }
  LINES.stand(request)
  LINES.serve_lock(request.line)
  return { 0, request.id, LINES.request(request.id).served }
end

-- Arguments: the instance, the quota, JSON of its limits, of its meters and of the costs, the job of
-- the run that asks, or ''. Answer: the request, or 0 if there is none, and the time of the charge, or
-- 0; or false: the instance has no lease.
local function spend(arguments)
  if not is_alive(arguments[1]) then
    return { 0, false }
  end
  remember(arguments[2], arguments[3], arguments[4])
  local request = {
    line = 'quota:' .. named(arguments[2]), instance = arguments[1],
    meters = cjson.decode(arguments[4]), costs = cjson.decode(arguments[5]), job = arguments[6],
  }
  local first = LINES.first(request.line)
  if not first and LINES.charged(request) then
    return { 0, '0', int(now) }
  end
  LINES.stand(request)
  if first then
    LINES.serve_quota(request.line)  -- its time may have come
  end
  return { 0, request.id, LINES.request(request.id).served }
end

-- Arguments: the instance, the request. Answer: the fence or the time of the charge, or 0, and in how
-- many microseconds to ask again; or false: the request has ended.
local function served(arguments)
  local request = is_alive(arguments[1]) and LINES.request(arguments[2])
  if not request then
    return { 0, false }
  end
  local due
  if request.costs and request.served == '0' then
    local first, at = LINES.serve_quota(request.line)
    if first == request.id then
      due = int(at - now)
    end
    request = LINES.request(request.id)
  end
  return { 0, request.served, due }
end

-- Arguments: the request, whether it was used.
local function release(arguments)
  LINES.release(arguments[1], arguments[2] == '1')
  return { 0 }
end

-- Arguments: the quota, JSON of its limits and of its meters, the time, JSON of the change: less than 0
-- is given back.
local function settle(arguments)
  local less, more = {}, {}
  for unit, amount in pairs(cjson.decode(arguments[5])) do
    if amount < 0 then
      less[unit] = -amount
    elseif amount > 0 then
      more[unit] = amount
    end
  end
  remember(arguments[1], arguments[2], arguments[3])
  local line, meters = 'quota:' .. named(arguments[1]), cjson.decode(arguments[3])
  give_back_to(line, meters, tonumber(arguments[4]), less)
  charge_meters(line, meters, more)
  LINES.tell(LINES.first(line))
  return { 0 }
end

-- Arguments: the quota. Answer: whether anything was known of it.
local function reset_quota(arguments)
  local known = call('HGET', ROOT .. 'qu', arguments[1])
  if not known then
    return { 0, 0 }
  end
  local line = 'quota:' .. named(arguments[1])
  for _, meter in ipairs(cjson.decode(cmsgpack.unpack(known)[2])) do
    call('DEL', meter_key(line, meter))
  end
  LINES.tell(LINES.first(line))
  return { 0, 1 }
end

WITH_TICKET.acquire = acquire
WITH_TICKET.spend = spend
WRITES.served = served
WITH_TICKET.release = release
WITH_TICKET.settle = settle
WITH_TICKET.reset_quota = reset_quota
