-- The acts of locks and quotas.

-- Arguments: the instance, the key, whether it is shared. Answer: the request and its fence, or 0; or
-- false: the instance has no lease.
local function acquire(arguments)
  if not is_alive(arguments[1]) then
    return { 0, false }
  end
  local request = { line = 'lock:' .. named(arguments[2]), instance = arguments[1] }
  request.shared = arguments[3] == '1'
  LINES.stand(request)
  LINES.serve_lock(request.line)
  return { 0, request.id, LINES.request(request.id).served }
end

-- Arguments: the instance, the quota, JSON of its meters and of the costs. Answer: the request, or 0 if
-- there is none, and the time of the charge, or 0; or false: the instance has no lease.
local function spend(arguments)
  if not is_alive(arguments[1]) then
    return { 0, false }
  end
  local request = {
    line = 'quota:' .. named(arguments[2]), instance = arguments[1],
    meters = cjson.decode(arguments[3]), costs = cjson.decode(arguments[4]),
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

-- Arguments: the quota, JSON of its meters, the time, JSON of what is given back and of what is taken.
local function settle(arguments)
  local line, meters = 'quota:' .. named(arguments[1]), cjson.decode(arguments[2])
  give_back_to(line, meters, tonumber(arguments[3]), cjson.decode(arguments[4]))
  charge_meters(line, meters, cjson.decode(arguments[5]))
  LINES.tell(LINES.first(line))
  return { 0 }
end

WITH_TICKET.acquire = acquire
WITH_TICKET.spend = spend
WRITES.served = served
WITH_TICKET.release = release
WITH_TICKET.settle = settle
