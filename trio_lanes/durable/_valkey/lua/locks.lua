-- The acts of locks and quotas.

-- Arguments: the instance, the key, whether it is shared, the job of the run that asks, or ''. Answer:
-- the request and its fence, or 0; or false: the instance has no lease.
function WITH_TICKET.acquire(arguments)
  if not is_alive(arguments[1]) then
    return { 0, false }
  end
  local request = {
    line = 'lock:' .. named(arguments[2]), instance = arguments[1], shared = arguments[3] == '1',
    job = arguments[4],
  }
  lines.make_request(request)
  lines.serve_lock(request.line)
  return lines.answer_of(request.id)
end

-- Arguments: the instance, the quota, JSON of its limits, of its meters and of the costs, the job of
-- the run that asks, or ''. Answer: the request, or 0 if there is none, and the time of the charge, or
-- 0; or false: the instance has no lease.
function WITH_TICKET.spend(arguments)
  if not is_alive(arguments[1]) then
    return { 0, false }
  end
  lines.remember(arguments[2], arguments[3], arguments[4])
  local request = {
    line = 'quota:' .. named(arguments[2]), instance = arguments[1],
    meters = cjson.decode(arguments[4]), costs = cjson.decode(arguments[5]), job = arguments[6],
  }
  local first = lines.first_of(request.line)
  if not first and lines.charged(request) then
    return { 0, '0', int(now) }
  end
  lines.make_request(request)
  if first then
    lines.serve_quota(request.line)  -- its time may have come
  end
  return lines.answer_of(request.id)
end

-- Arguments: the request, whether it was used.
function WITH_TICKET.release(arguments)
  lines.release(arguments[1], arguments[2] == '1')
  return { 0 }
end

-- Arguments: the quota, JSON of its limits and of its meters, the time, JSON of the change: less than 0
-- is given back.
function WITH_TICKET.settle(arguments)
  local less, more = {}, {}
  for unit, amount in pairs(cjson.decode(arguments[5])) do
    if amount < 0 then
      less[unit] = -amount
    elseif amount > 0 then
      more[unit] = amount
    end
  end
  lines.remember(arguments[1], arguments[2], arguments[3])
  local line, meters = 'quota:' .. named(arguments[1]), cjson.decode(arguments[3])
  rates.give_back(line, meters, less, tonumber(arguments[4]))
  rates.charge(line, meters, more)
  lines.wake_first(line)
  return { 0 }
end

-- Arguments: the quota. Answer: whether anything was known of it.
function WITH_TICKET.reset_quota(arguments)
  local known = call('HGET', ROOT .. 'qu', arguments[1])
  if not known then
    return { 0, 0 }
  end
  local line = 'quota:' .. named(arguments[1])
  for _, meter in ipairs(cjson.decode(cmsgpack.unpack(known)[2])) do
    call('DEL', rates.key_of(line, meter))
  end
  lines.wake_first(line)
  return { 0, 1 }
end
