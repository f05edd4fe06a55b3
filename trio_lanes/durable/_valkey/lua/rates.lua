-- Rate limits in a store: the meters, over marks that the store keeps. A start takes the costs of its
-- job, by unit; `owner` is a lane, a group or a quota. The last meters of a quota may be there to note what
-- is spent (`notes`), and limit nothing.

local rates = {}
local ONE_REQUEST = { requests = 1 }
local FORGET_AFTER = 7200000  -- milliseconds: a clock may be set an hour ahead
local KINDS = {
  sliding = SlidingWindow, gcra = Bucket, day = CalendarWindow, month = CalendarWindow,
}
local MILLION, MAX_DECIMAL = 1000000, 1000000000

function rates.key_of(owner, meter)
  return ROOT .. 'm:' .. meter.kind .. ' ' .. meter.n .. ' ' .. named(meter.unit) .. ' ' .. owner
end

-- How many parts of which `scale` are 1 an amount is, rounded up: `counted_in`. A text is a decimal with
-- millionths; it is so small that the nearest whole number of them is meant.
function rates.counted_in(amount, scale)
  if type(amount) ~= 'string' then
    return amount * scale
  end
  return math.ceil(math.floor(tonumber(amount) * MILLION + 0.5) * scale / MILLION)
end

-- Whether a limit counts an amount exactly.
function rates.fits(amount, scale)
  if scale > 1 then
    return tonumber(amount) <= MAX_DECIMAL
  end
  return rates.counted_in(amount, 1) == tonumber(amount)
end

-- The arithmetic of a meter; its kind may end with '-decimal'.
local function class_of(meter)
  return KINDS[string.match(meter.kind, '^%a+')]
end

local function forget_at(key, refilled_at)
  local millis = math.ceil((refilled_at - (meta.offset or 0)) / 1000) + FORGET_AFTER
  call('PEXPIREAT', key, int(math.min(2 ^ 53, millis)))  -- a server takes no time far ahead
end

local function window_end(meter)
  local at = meter.zone and calendar.window_end(calendar.second(now), meter)
  return at and calendar.store_time(at) or now + meter.per
end

-- Do `act` of each meter that counts a cost. Return the greatest of the times that it returns, or nil.
-- The server may forget a meter that was changed, when it has been replenished for some time.
local function do_counted(owner, meters, costs, act, ...)
  local last
  for _, meter in ipairs(meters) do
    local amount = rates.counted_in(costs[meter.unit] or 0, meter.scale)
    if amount > 0 then
      local key = rates.key_of(owner, meter)
      local time = class_of(meter)[act](key, meter, amount, ...)
      if time and meter.notes then
        time = math.min(time, last or time)  -- it is kept as long as what limits
      end
      if time and act ~= 'ready_at' then
        forget_at(key, time)
      end
      last = time and math.max(last or time, time) or last
    end
  end
  return last
end

-- Return when all charged meters are fully replenished; nil: none was charged.
function rates.charge(owner, meters, costs)
  return do_counted(owner, meters, costs, 'charged')
end

-- Lessen the charge that was made at a time.
function rates.give_back(owner, meters, costs, at)
  do_counted(owner, meters, costs, 'given_back', at)
end

-- When all meters of an owner admit a start of these costs. What was granted counts only for a quota:
-- `all_granted`, the hash qg, has it by the key of a meter.
function rates.ready_at(owner, meters, costs, all_granted)
  if not all_granted then
    return do_counted(owner, meters, costs, 'ready_at') or -huge
  end
  local last = -huge
  for _, meter in ipairs(meters) do
    local key = rates.key_of(owner, meter)
    local amount = rates.counted_in(costs[meter.unit] or 0, meter.scale)
    if amount > 0 and not meter.notes then
      local left = amount - rates.granted(key)
      last = math.max(last, class_of(meter).ready_at(key, meter, left))
    end
  end
  return last
end

-- How much more than its limit a meter admits now.
function rates.granted(key)
  local text, sum = call('HGET', ROOT .. 'qg', key), 0
  for _, one in ipairs(text and cmsgpack.unpack(text) or {}) do
    sum = sum + (one[1] > now and one[2] or 0)
  end
  return sum
end

-- Let meters admit more than their limits, until their windows end.
function rates.grant(owner, meters, amounts)
  local all, flat = {}, call('HGETALL', ROOT .. 'qg')
  for at = 1, #flat, 2 do  -- those that are over are forgotten
    local kept = {}
    for _, one in ipairs(cmsgpack.unpack(flat[at + 1])) do
      kept[#kept + 1] = one[1] > now and one or nil
    end
    all[flat[at]] = kept
  end
  for _, meter in ipairs(meters) do
    local key = rates.key_of(owner, meter)
    local amount = rates.counted_in(amounts[meter.unit] or 0, meter.scale)
    if amount > 0 and not meter.notes then
      all[key] = all[key] or {}
      table.insert(all[key], { window_end(meter), amount })
    end
  end
  call('DEL', ROOT .. 'qg')
  for key, kept in pairs(all) do
    if kept[1] then
      call('HSET', ROOT .. 'qg', key, cmsgpack.pack(kept))
    end
  end
end

-- The units of the budgets of which 80 % are used, and were not before in the window.
function rates.newly_low(owner, meters)
  local found = {}
  for _, meter in ipairs(meters) do
    local key = rates.key_of(owner, meter)
    local used = meter.budget and class_of(meter).used(key, meter) or 0
    if used > 0 and used * 5 >= (meter.most + rates.granted(key)) * 4 then
      local noted = ROOT .. 'lw:' .. key
      if tonumber(call('GET', noted) or 0) <= now then
        call('SET', noted, int(window_end(meter)))
        forget_at(noted, window_end(meter))
        found[#found + 1] = meter.unit
      end
    end
  end
  return found
end

-- The marks of `old` become those of `new`.
function rates.replace(owner, old, new)
  local before = {}
  for _, meter in ipairs(old or {}) do
    before[rates.key_of(owner, meter)] = meter
  end
  for _, meter in ipairs(new or {}) do
    local key = rates.key_of(owner, meter)
    if before[key] then
      forget_at(key, class_of(meter).continued(key, meter, before[key]))
      before[key] = nil
    end
  end
  for key in pairs(before) do
    call('DEL', key)
  end
end

-- Of each limit of an owner, the amount that counts against it now, and when it is replenished, or false.
function rates.levels(owner, meters)
  local found = {}
  for place, meter in ipairs(meters) do
    local key = rates.key_of(owner, meter)
    if not meter.notes then
      local used, refilled_at = class_of(meter).used(key, meter)
      found[place] = { used, used > 0 and refilled_at, rates.granted(key) }
    end
  end
  return found
end

-- A refusal, if the groups do not fit the lanes; else nil. `list` is in the given order.
function rates.check_groups(all, list)
  local group_of = {}
  for _, group in ipairs(list) do
    for _, member in ipairs(group.members) do
      if not all[member] then
        return { 1, 'no member', group.name, member }
      elseif group_of[member] then
        return { 1, 'two groups', member, group_of[member], group.name }
      end
      group_of[member] = group.name
    end
  end
end
