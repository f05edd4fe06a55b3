-- The meters of rate limits, over the keys of a namespace: what _limits/meters.py says, in integers.
--
-- A sliding window keeps a sorted set: the time of each start that is in the window, and of the last
-- start before these, with the sum of all charges up to it (as 16 digits, so that the sums are in
-- order). The start that must leave the window before another amount fits is found by a binary search.
--
-- A bucket keeps a list: `since`, `sum`, `begun`, and dips. The theoretical arrival time is since + sum *
-- num / den microseconds. `sum` stays below `den` by moving `since`, so the products are exact. An
-- amount is admitted as much earlier as the burst is larger. `begun` is when the first charge was made
-- that can be corrected. A dip is the time of a later charge, and the sum before it; it is kept if less
-- was used right before it than at any time since.
--
-- A function that changes a meter returns when the limit is fully replenished, if nothing more is
-- charged to it.

local SlidingWindow, Bucket = {}, {}
local MAX_DIPS = 64

-- Rank `place` of a sliding window: the time and the sum.
function SlidingWindow.mark_at(key, place)
  local mark = call('ZRANGE', key, place, place, 'WITHSCORES')
  return tonumber(mark[2] or nil), tonumber(mark[1] or nil)
end

function SlidingWindow.add(key, time, sum)
  call('ZADD', key, time, string.format('%016.0f', sum))
end

function SlidingWindow.ready_at(key, meter, amount)
  local _, all = SlidingWindow.mark_at(key, -1)
  local leaving = all and all - math.max(meter.most - amount, 0) or 0
  if leaving <= 0 then
    return -huge
  end
  local low, high = 0, call('ZCARD', key) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, sum = SlidingWindow.mark_at(key, middle)
    if sum < leaving then
      low = middle + 1
    else
      high = middle
    end
  end
  return SlidingWindow.mark_at(key, low) + meter.per
end

function SlidingWindow.charged(key, meter, amount)
  local gone = SlidingWindow.gone(key, meter.per)
  if gone == call('ZCARD', key) then
    call('DEL', key)
    SlidingWindow.add(key, now, amount)
    return now + meter.per
  end
  local _, all = SlidingWindow.mark_at(key, -1)
  SlidingWindow.add(key, now, all + amount)
  if gone > 1 then  -- one that has left stays: a later search may find it
    call('ZREMRANGEBYRANK', key, 0, gone - 2)
  end
  return now + meter.per
end

-- Lessen the charge of a time by an amount, at most by what it still occupies. Nil: nothing was changed,
-- or nothing is left; also of a bucket.
function SlidingWindow.given_back(key, meter, amount, at)
  local mine = call('ZRANGEBYSCORE', key, int(at), int(at))
  if #mine == 0 or at + meter.per <= now then
    return
  end
  local later = call('ZRANGEBYSCORE', key, '(' .. int(at), '+inf', 'WITHSCORES')
  call('ZREMRANGEBYSCORE', key, int(at), '+inf')
  local _, before = SlidingWindow.mark_at(key, -1)
  before = before or 0
  local total, last = tonumber(mine[#mine]), at
  local most = math.max(total - amount, before)
  for _, sum in ipairs(mine) do
    sum = math.min(tonumber(sum), most)
    if sum > before then
      SlidingWindow.add(key, at, sum)
    end
  end
  for place = 1, #later, 2 do
    last = tonumber(later[place + 1])
    SlidingWindow.add(key, last, tonumber(later[place]) - (total - most))
  end
  return last + meter.per
end

-- The amount that counts against the limit now, and when the limit is replenished; also of a bucket.
function SlidingWindow.used(key, meter)
  local time, all = SlidingWindow.mark_at(key, -1)
  if not time then
    return 0
  end
  local gone = SlidingWindow.gone(key, meter.per)
  local _, before = SlidingWindow.mark_at(key, gone - 1)
  return all - (gone > 0 and before or 0), time + meter.per
end

-- The charges in the window of `old` stay.
function SlidingWindow.continued(key, meter, old)
  local gone = SlidingWindow.gone(key, old.per)
  if gone > 0 then
    local _, before = SlidingWindow.mark_at(key, gone - 1)
    local kept = call('ZRANGE', key, gone, -1, 'WITHSCORES')
    call('DEL', key)
    for at = 1, #kept, 2 do
      SlidingWindow.add(key, tonumber(kept[at + 1]), tonumber(kept[at]) - before)
    end
  end
  return now + meter.per
end

-- How many marks are of charges that have left the window.
function SlidingWindow.gone(key, per)
  return call('ZCOUNT', key, '-inf', int(now - per))
end

function Bucket.since_and_sum(key)
  local since, sum = unpack(call('LRANGE', key, 0, 1))
  return tonumber(since or nil), tonumber(sum or nil)
end

function Bucket.get(key)
  local held = call('LRANGE', key, 0, -1)
  for place, number in ipairs(held) do
    held[place] = tonumber(number)
  end
  local bucket = { since = held[1], sum = held[2], begun = held[3], dips = {} }
  for place = 4, #held, 2 do
    table.insert(bucket.dips, { time = held[place], sum = held[place + 1] })
  end
  return bucket
end

function Bucket.put(key, meter, bucket)
  local whole = math.floor(bucket.sum / meter.den)
  local since, less = bucket.since + whole * meter.num, whole * meter.den
  local held = { int(since), int(bucket.sum - less), int(bucket.begun) }
  for _, dip in ipairs(bucket.dips) do
    table.insert(held, int(dip.time))
    table.insert(held, int(dip.sum - less))
  end
  call('DEL', key)
  call('RPUSH', key, unpack(held))
  return Bucket.arrival(meter, since, bucket.sum - less)
end

function Bucket.is_replenished(bucket, meter)
  return not bucket.since or Bucket._used(bucket, meter, now, bucket.sum) <= 0
end

function Bucket.ready_at(key, meter, amount)
  local since, sum = Bucket.since_and_sum(key)
  if not since then
    return -huge
  end
  local ahead = math.max(meter.burst - amount * meter.num, 0)
  return since + math.ceil((sum * meter.num - ahead) / meter.den)
end

function Bucket.charged(key, meter, amount)
  local bucket = Bucket.get(key)
  local dips = bucket.dips
  if Bucket.is_replenished(bucket, meter) then
    bucket = { since = now, sum = 0, begun = now, dips = {} }
  else
    Bucket.sunk(bucket, meter, #dips, Bucket._used(bucket, meter, now, bucket.sum))
    table.insert(dips, { time = now, sum = bucket.sum })
    if #dips == MAX_DIPS then
      bucket.begun = table.remove(dips, 1).time
    end
  end
  bucket.sum = bucket.sum + amount
  return Bucket.put(key, meter, bucket)
end

function Bucket.given_back(key, meter, amount, at)
  local bucket = Bucket.get(key)
  if Bucket.is_replenished(bucket, meter) or at < bucket.begun then
    return
  end
  local dips, after = bucket.dips, 1
  while dips[after] and dips[after].time <= at do
    after = after + 1
  end
  local later, less = dips[after], amount
  local dip = later and Bucket._used(bucket, meter, later.time, later.sum)
  local ran_over = later and dip <= amount * meter.num
  if ran_over then  -- it would have been full then, and in use since the later charge
    bucket.since, bucket.begun, less = later.time, later.time, later.sum
  end
  bucket.sum = bucket.sum - less
  for place = after, #dips do
    dips[place].sum = dips[place].sum - less
  end
  if ran_over then
    for _ = 1, after do
      table.remove(dips, 1)
    end
  elseif later then
    Bucket.sunk(bucket, meter, after - 1, dip - amount * meter.num)
  end
  if Bucket.is_replenished(bucket, meter) then
    call('DEL', key)
    return
  end
  return Bucket.put(key, meter, bucket)
end

function Bucket.used(key, meter)
  local since, sum = Bucket.since_and_sum(key)
  if not since then
    return 0
  end
  local left = (since - now) * meter.den + sum * meter.num
  return math.max(0, math.ceil(left / meter.num)), Bucket.arrival(meter, since, sum)
end

-- The used part stays the same, and leaks at the new rate from now on.
function Bucket.continued(key, meter, old)
  local since, sum = Bucket.since_and_sum(key)
  local used = since and math.max(((since - now) * old.den + sum * old.num) / old.num, 0) or 0
  local whole = math.floor(used)
  local at = now + math.ceil((used - whole) * meter.num / meter.den)
  return since and Bucket.put(key, meter, { since = at, sum = whole, begun = at, dips = {} }) or now
end

-- The theoretical arrival time: from then on nothing is used.
function Bucket.arrival(meter, since, sum)
  return since + math.ceil(sum * meter.num / meter.den)
end

-- What is used at a time, times `num`.
function Bucket._used(bucket, meter, time, sum)
  return (bucket.since - time) * meter.den + sum * meter.num
end

-- Drop the dips from `place` down that are not below a use.
function Bucket.sunk(bucket, meter, place, used)
  local dip = bucket.dips[place]
  while dip and Bucket._used(bucket, meter, dip.time, dip.sum) >= used do
    table.remove(bucket.dips, place)
    place = place - 1
    dip = bucket.dips[place]
  end
end
