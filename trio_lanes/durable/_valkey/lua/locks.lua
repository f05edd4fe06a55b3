-- The acts of locks and quotas.

-- `job`: of the run that asks, or ''. Answer: the request and its fence, or 0; or false: the instance
-- has no lease.
function WITH_TICKET.acquire(instance, key, shared, job)
  if not is_alive(instance) then
    return { 0, false }
  end
  local request = {
    line = 'lock ' .. key, instance = instance, shared = shared == '1', job = job,
  }
  lines.make_request(request)
  lines.serve_lock(request.line)
  return lines.answer_of(request.id)
end

-- `limits`, `meters`, `costs`: JSON. Answer: the request, or 0 if there is none, and the time of the
-- charge, or 0; or false: the instance has no lease.
function WITH_TICKET.spend(instance, quota, limits, meters, costs, job)
  if not is_alive(instance) then
    return { 0, false }
  end
  lines.remember(quota, limits, meters)
  local request = {
    line = 'quota ' .. quota, instance = instance,
    meters = cjson.decode(meters), costs = cjson.decode(costs), job = job,
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

function WITH_TICKET.release(request, used)
  lines.release(request, used == '1')
  return { 0 }
end

-- `limits`, `meters`, `change`: JSON. Less than 0 is given back.
function WITH_TICKET.settle(quota, limits, meters, at, change)
  local less, more = {}, {}
  for unit, amount in pairs(cjson.decode(change)) do
    if amount < 0 then
      less[unit] = -amount
    elseif amount > 0 then
      more[unit] = amount
    end
  end
  lines.remember(quota, limits, meters)
  local line = 'quota ' .. quota
  meters = cjson.decode(meters)
  rates.give_back(line, meters, less, tonumber(at))
  rates.charge(line, meters, more)
  lines.wake_first(line)
  return { 0 }
end

-- Answer: whether anything was known of it.
function WITH_TICKET.reset_quota(quota)
  local known = call('HGET', ROOT .. 'qu', quota)
  if not known then
    return { 0, 0 }
  end
  local line = 'quota ' .. quota
  for _, meter in ipairs(cjson.decode(cmsgpack.unpack(known)[2])) do
    call('DEL', rates.key_of(line, meter))
  end
  lines.wake_first(line)
  return { 0, 1 }
end
