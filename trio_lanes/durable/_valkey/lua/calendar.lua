-- Limits of calendar days and months, as _limits/calendar.py says. A key has the end of the window in
-- Unix time, and the sum of its charges. The zone of a meter is a list of {from, offset}: since a second
-- of Unix time, its local time is so many seconds ahead of UTC.

local CalendarWindow, calendar = {}, {}
local DAY = 86400

function CalendarWindow.mark(key)
  local mark = call('GET', key)
  if mark then
    local stop, sum = string.match(mark, '^(%d+) (%d+)$')
    return tonumber(stop), tonumber(sum)
  end
end

function CalendarWindow.ready_at(key, meter, amount)
  local stop, sum = CalendarWindow.mark(key)
  if not stop or sum <= math.max(meter.most - amount, 0) then
    return -huge
  end
  return calendar.store_time(stop)
end

function CalendarWindow.charged(key, meter, amount)
  local used = CalendarWindow.used(key, meter)
  local stop = CalendarWindow.mark(key)
  if used == 0 then
    stop = calendar.window_end(calendar.second(now), meter)
  end
  call('SET', key, int(stop) .. ' ' .. int(used + amount))
  return calendar.store_time(stop)
end

function CalendarWindow.given_back(key, meter, amount, at)
  local used = CalendarWindow.used(key, meter)
  local stop = CalendarWindow.mark(key)
  if used == 0 or calendar.window_end(calendar.second(at), meter) ~= stop then
    return
  end
  call('SET', key, int(stop) .. ' ' .. int(math.max(used - amount, 0)))
  return calendar.store_time(stop)
end

function CalendarWindow.used(key)
  local stop, sum = CalendarWindow.mark(key)
  if not stop or calendar.second(now) >= stop then
    return 0
  end
  return sum, calendar.store_time(stop)
end

function CalendarWindow.continued(key)
  local stop = CalendarWindow.mark(key)
  return stop and calendar.store_time(stop) or now
end

-- The second of Unix time at a time of the store, and the reverse.
function calendar.second(time)
  return math.floor((time - (meta.offset or 0)) / SECOND)
end

function calendar.store_time(second)
  return second * SECOND + (meta.offset or 0)
end

function calendar.window_end(second, meter)
  local ahead = 0
  for _, change in ipairs(meter.zone) do
    if change[1] <= second then
      ahead = change[2]
    end
  end
  local day, stop = math.floor((second + ahead) / DAY)
  repeat
    day = calendar.next(day, meter.per)
    stop = calendar.begins(day, meter.zone)
  until stop > second
  return stop
end

-- The day with which the window after that of a day begins. Days are counted from 1970.
function calendar.next(day, per)
  if per == 'day' then
    return day + 1
  end
  return calendar.first(calendar.first(day) + 31)
end

-- When a day begins at a place.
function calendar.begins(day, zone)
  for at, change in ipairs(zone) do
    local from = math.max(change[1], day * DAY - change[2])
    if not zone[at + 1] or from < zone[at + 1][1] then
      return from
    end
  end
end

-- The first day of the month of a day: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
function calendar.first(day)
  local of_era = (day + 719468) % 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * of_year + 2) / 153)  -- from March
  return day - of_year + math.floor((153 * month + 2) / 5)
end
