-- Rate limits: their marks of past starts, and the time of the next start, in integers: what
-- _limits/meters.py says, over the keys of a namespace.
--
-- A start takes the costs of its job, by unit. A sliding limit keeps a sorted set: the time of each
-- start that is in the window, and of the last start before these, with the sum of all charges up to
-- it (as 16 digits, so that the sums are in order). The start that must leave the window before
-- another amount fits is found by a binary search.
--
-- The other kind, gcra, keeps a list: `since`, `sum`, `begun`, and dips. The theoretical arrival time
-- is since + sum * num / den microseconds. `sum` stays below `den` by moving `since`, so the products
-- are exact. An amount is admitted as much earlier as the burst is larger. `begun` is when the first
-- charge was made that can be corrected. A dip is the time of a later charge, and the sum before it; it
-- is kept if less was used right before it than at any time since.

local ONE_REQUEST = { requests = 1 }
local FORGET_AFTER = 7200000  -- milliseconds: a clock may be set an hour ahead
local MOST_DIPS = 64

local function meter_key(owner, meter)
  return ROOT .. 'm:' .. owner .. ' ' .. meter.kind .. ' ' .. meter.n .. ' ' .. meter.unit
end

local SLIDING, GCRA = {}, {}

do  -- what only the two kinds use: Lua has at most 200 local variables at one place

-- Rank `place` of a sliding limit: the time and the sum.
local function mark_at(key, place)
  local mark = call('ZRANGE', key, place, place, 'WITHSCORES')
  return tonumber(mark[2] or nil), tonumber(mark[1] or nil)
end

-- How many marks are of charges that have left the window.
local function gone_from(key, per)
  return call('ZCOUNT', key, '-inf', int(now - per))
end

local function add_mark(key, time, sum)
  call('ZADD', key, time, string.format('%016.0f', sum))
end

function SLIDING.ready_at(key, meter, amount)
  local _, all = mark_at(key, -1)
  local leaving = all and all - math.max(meter.most - amount, 0) or 0
  if leaving <= 0 then
    return -huge
  end
  local low, high = 0, call('ZCARD', key) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, sum = mark_at(key, middle)
    if sum < leaving then
      low = middle + 1
    else
      high = middle
    end
  end
  return mark_at(key, low) + meter.per
end

-- Return when the limit is as new, if nothing more is charged to it.
function SLIDING.charge(key, meter, amount)
  local gone = gone_from(key, meter.per)
  if gone == call('ZCARD', key) then
    call('DEL', key)
    add_mark(key, now, amount)
    return now + meter.per
  end
  local _, all = mark_at(key, -1)
  add_mark(key, now, all + amount)
  if gone > 1 then  -- one that has left stays: a later search may find it
    call('ZREMRANGEBYRANK', key, 0, gone - 2)
  end
  return now + meter.per
end

-- The charges in the window of `old` stay. Return when the limit is as new.
function SLIDING.continue(key, old, meter)
  local gone = gone_from(key, old.per)
  if gone > 0 then
    local _, before = mark_at(key, gone - 1)
    local kept = call('ZRANGE', key, gone, -1, 'WITHSCORES')
    call('DEL', key)
    for at = 1, #kept, 2 do
      add_mark(key, tonumber(kept[at + 1]), tonumber(kept[at]) - before)
    end
  end
  return now + meter.per
end

local function since_and_sum(key)
  local since, sum = unpack(call('LRANGE', key, 0, 1))
  return tonumber(since or nil), tonumber(sum or nil)
end

local function bucket_at(key)
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

-- Return when the limit is as new.
local function put_bucket(key, meter, bucket)
  local whole = math.floor(bucket.sum / meter.den)
  local since, less = bucket.since + whole * meter.num, whole * meter.den
  local held = { int(since), int(bucket.sum - less), int(bucket.begun) }
  for _, dip in ipairs(bucket.dips) do
    table.insert(held, int(dip.time))
    table.insert(held, int(dip.sum - less))
  end
  call('DEL', key)
  call('RPUSH', key, unpack(held))
  return since + math.ceil((bucket.sum - less) * meter.num / meter.den)
end

-- What is used at a time, times `num`.
local function used_at(bucket, meter, time, sum)
  return (bucket.since - time) * meter.den + sum * meter.num
end

local function is_as_new(bucket, meter)
  return not bucket.since or used_at(bucket, meter, now, bucket.sum) <= 0
end

-- Drop the dips from `place` down that are not below a use.
local function drop_dips(bucket, meter, place, used)
  local dip = bucket.dips[place]
  while dip and used_at(bucket, meter, dip.time, dip.sum) >= used do
    table.remove(bucket.dips, place)
    place = place - 1
    dip = bucket.dips[place]
  end
end

function GCRA.ready_at(key, meter, amount)
  local since, sum = since_and_sum(key)
  if not since then
    return -huge
  end
  local ahead = math.max(meter.burst - amount * meter.num, 0)
  return since + math.ceil((sum * meter.num - ahead) / meter.den)
end

function GCRA.charge(key, meter, amount)
  local bucket = bucket_at(key)
  local dips = bucket.dips
  if is_as_new(bucket, meter) then
    bucket = { since = now, sum = 0, begun = now, dips = {} }
  else
    drop_dips(bucket, meter, #dips, used_at(bucket, meter, now, bucket.sum))
    table.insert(dips, { time = now, sum = bucket.sum })
    if #dips == MOST_DIPS then
      bucket.begun = table.remove(dips, 1).time
    end
  end
  bucket.sum = bucket.sum + amount
  return put_bucket(key, meter, bucket)
end

-- The used part stays the same, and leaks at the new rate from now on.
function GCRA.continue(key, old, meter)
  local since, sum = since_and_sum(key)
  if since then
    local used = math.max(((since - now) * old.den + sum * old.num) / old.num, 0)
    local whole = math.floor(used)
    local at = now + math.ceil((used - whole) * meter.num / meter.den)
    put_bucket(key, meter, { since = at, sum = whole, begun = at, dips = {} })
    since, sum = since_and_sum(key)
  end
  return (since or now) + math.ceil((sum or 0) * meter.num / meter.den)
end

-- Lessen the charge of a time by an amount, at most by what it still occupies. Return when the limit is
-- as new; nil: nothing was changed, or nothing is left.
function SLIDING.give_back(key, meter, at, amount)
  local mine = call('ZRANGEBYSCORE', key, int(at), int(at))
  if #mine == 0 or at + meter.per <= now then
    return
  end
  local later = call('ZRANGEBYSCORE', key, '(' .. int(at), '+inf', 'WITHSCORES')
  call('ZREMRANGEBYSCORE', key, int(at), '+inf')
  local _, before = mark_at(key, -1)
  before = before or 0
  local total, last = tonumber(mine[#mine]), at
  local most = math.max(total - amount, before)
  for _, sum in ipairs(mine) do
    sum = math.min(tonumber(sum), most)
    if sum > before then
      add_mark(key, at, sum)
    end
  end
  for place = 1, #later, 2 do
    last = tonumber(later[place + 1])
    add_mark(key, last, tonumber(later[place]) - (total - most))
  end
  return last + meter.per
end

function GCRA.give_back(key, meter, at, amount)
  local bucket = bucket_at(key)
  if is_as_new(bucket, meter) or at < bucket.begun then
    return
  end
  local dips, after = bucket.dips, 1
  while dips[after] and dips[after].time <= at do
    after = after + 1
  end
  local later, less = dips[after], amount
  local dip = later and used_at(bucket, meter, later.time, later.sum)
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
    drop_dips(bucket, meter, after - 1, dip - amount * meter.num)
  end
  if is_as_new(bucket, meter) then
    call('DEL', key)
    return
  end
  return put_bucket(key, meter, bucket)
end

-- The amount that counts against a limit now, and when the limit is as new.
function SLIDING.used(key, meter)
  local time, all = mark_at(key, -1)
  if not time then
    return 0
  end
  local gone = gone_from(key, meter.per)
  local _, before = mark_at(key, gone - 1)
  return all - (gone > 0 and before or 0), time + meter.per
end

function GCRA.used(key, meter)
  local since, sum = since_and_sum(key)
  if not since then
    return 0
  end
  local left = (since - now) * meter.den + sum * meter.num
  return math.max(0, math.ceil(left / meter.num)), since + math.ceil(sum * meter.num / meter.den)
end

end

local KINDS = { sliding = SLIDING, gcra = GCRA }

local function forget_meter_at(key, as_new)
  local millis = math.ceil((as_new - (meta.offset or 0)) / 1000) + FORGET_AFTER
  call('PEXPIREAT', key, int(math.min(2 ^ 53, millis)))  -- a server takes no time far ahead
end

local function used_of(key, meter)
  return KINDS[meter.kind].used(key, meter)
end

-- When all meters of an owner admit a start of these costs.
local function meters_ready_at(owner, meters, costs)
  local ready_at = -huge
  for _, meter in ipairs(meters) do
    local amount = costs[meter.unit] or 0
    if amount > 0 then
      local key = meter_key(owner, meter)
      ready_at = math.max(ready_at, KINDS[meter.kind].ready_at(key, meter, amount))
    end
  end
  return ready_at
end

-- Return when all charged meters are as new; nil: none was charged. From then on the server may forget
-- them.
local function charge_meters(owner, meters, costs)
  local last
  for _, meter in ipairs(meters) do
    local amount = costs[meter.unit] or 0
    if amount > 0 then
      local key = meter_key(owner, meter)
      local as_new = KINDS[meter.kind].charge(key, meter, amount)
      forget_meter_at(key, as_new)
      last = math.max(last or 0, as_new)
    end
  end
  return last
end

local function give_back_to(owner, meters, at, costs)
  for _, meter in ipairs(meters) do
    local amount = costs[meter.unit] or 0
    if amount > 0 then
      local key = meter_key(owner, meter)
      local as_new = KINDS[meter.kind].give_back(key, meter, at, amount)
      if as_new then
        forget_meter_at(key, as_new)
      end
    end
  end
end

-- The marks of `old` become those of `new`.
local function replace_meters(owner, old, new)
  local before = {}
  for _, meter in ipairs(old or {}) do
    before[meter_key(owner, meter)] = meter
  end
  for _, meter in ipairs(new or {}) do
    local key = meter_key(owner, meter)
    if before[key] then
      forget_meter_at(key, KINDS[meter.kind].continue(key, before[key], meter))
      before[key] = nil
    end
  end
  for key in pairs(before) do
    call('DEL', key)
  end
end
