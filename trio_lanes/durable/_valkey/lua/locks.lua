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
function WITH_TICKET.spend(instance, quota, limits, meters, costs, job, template, wait)
  if not is_alive(instance) then
    return { 0, false }
  end
  local request = {
    line = 'quota ' .. quota, instance = instance,
    meters = cjson.decode(meters), costs = cjson.decode(costs), job = job,
  }
  local at = wait == '0' and lines.refused_until(request)
  if at then
    local levels = rates.levels(request.line, request.meters)
    return { 1, 'spent', json({ quota, limits, levels }), at < huge and int(at) or false }
  end
  lines.remember(given(template) or quota, limits, meters)
  local first = lines.first_of(request.line)
  if not first and lines.charged(request) then
    return { 0, '0', int(now), unpack(rates.newly_low(request.line, request.meters)) }
  end
  lines.make_request(request)
  if first then
    lines.serve_quota(request.line)  -- its time may have come
  end
  return lines.answer_of(request.id)
end

function WITH_TICKET.release(request, used)
  local ended = lines.request(request)
  lines.release(request, used == '1')
  local low = ended and ended.costs and used == '1'
  return { 0, unpack(low and rates.newly_low(ended.line, ended.meters) or {}) }
end

-- `ticket`: of the act that is withdrawn; `limits`, `meters`, `costs`: JSON.
function WITH_TICKET.withdraw(ticket, quota, limits, meters, costs)
  local refused, request, served = unpack(answer_of(ticket) or { 1 })
  if refused == 0 and request == '0' then
    local line = 'quota ' .. given(quota)
    rates.give_back(line, cjson.decode(meters), cjson.decode(costs), tonumber(served))
    lines.wake_first(line)
  elseif refused == 0 and request then
    lines.release(request, false)
  end
  keep_answer(ticket, { 1, 'withdrawn' })
  return { 0 }
end

-- `limits`, `meters`, `change`: JSON. Less than 0 is given back.
function WITH_TICKET.settle(quota, limits, meters, at, change, template)
  local less, more = {}, {}
  for unit, amount in pairs(cjson.decode(change)) do
    if type(amount) == 'string' and string.sub(amount, 1, 1) == '-' then
      less[unit] = string.sub(amount, 2)
    elseif type(amount) == 'number' and amount < 0 then
      less[unit] = -amount
    else
      more[unit] = amount
    end
  end
  lines.remember(given(template) or quota, limits, meters)
  local line = 'quota ' .. quota
  meters = cjson.decode(meters)
  rates.give_back(line, meters, less, tonumber(at))
  lines.charge(line, meters, more)
  lines.wake_first(line)
  return { 0, unpack(rates.newly_low(line, meters)) }
end

-- `limits`, `meters`, `amounts`: JSON. `record`: for the log of grants.
function WITH_TICKET.grant(quota, limits, meters, amounts, record)
  local line = 'quota ' .. quota
  rates.grant(line, cjson.decode(meters), cjson.decode(amounts))
  call('RPUSH', ROOT .. 'x:grants', cmsgpack.pack({ CALLER, record }))
  lines.wake_first(line)
  return { 0 }
end

GROWS.grant = true

-- Answer: whether anything was known of it, and, of a quota of a template, in use.
function WITH_TICKET.reset_quota(quota)
  local limits, meters, template = lines.limits_of(quota)
  if not limits then
    return { 0, 0 }
  end
  local line, was_used = 'quota ' .. quota, not template
  for _, level in ipairs(rates.levels(line, meters)) do
    was_used = was_used or level[1] > 0
  end
  for _, meter in ipairs(meters) do
    local key = rates.key_of(line, meter)
    call('DEL', key, ROOT .. 'lw:' .. key)
  end
  lines.wake_first(line)
  return { 0, was_used and 1 or 0 }
end

-- Without limits, by those that were applied last. Answer: the quota, the limits, and what is in use of
-- each.
function READS.levels_of(quota, limits, meters)
  meters = cjson.decode(meters)
  if #meters == 0 then
    limits, meters = lines.limits_of(quota)
  end
  return { 0, json({ quota, limits or '[]', rates.levels('quota ' .. quota, meters or {}) }) }
end
