-- The keys of a namespace, its time, and its numbers.
--
-- All keys begin with ROOT, which has the one hash tag of the namespace: '{lanes}:'. So all keys lie
-- in one slot of a cluster, and each call of this script is atomic.
--
-- Numbers are doubles here: integers are exact below 2^53. Times are whole microseconds, which is
-- exact until the year 2255. `..` writes a number with 14 digits only, so ids, fences and times are
-- written by `int` where they become a part of a text.
--
-- The functions live as long as the server, and what a call knows until the next: a file that has such
-- variables sets them in a function that it gives to `at_call`.
--
-- The arguments of a call: the server's run_id, the caller's channel, its incarnation, how long it had
-- no answer, the greatest time of the store by its own clock, the rules that hold until a worker has set
-- some; then acts: verb, number of arguments, arguments.

local huge = 1 / 0  -- a library may not use `math` while it is loaded
local SCHEMA = 3
local MIGRATIONS = {}  -- by schema: the function that makes the next schema of it
local SECOND = 1000000
local FIRST = 7       -- the place of the first act
local AHEAD = SECOND  -- the clock was set if it has gone on by so much more than that of the caller
local BATCH = 500     -- how many members of a set are read, written or worked on at once

-- The acts, by verb: acts that only read, acts that write, acts that are done once for each ticket.
local READS, WRITES, WITH_TICKET = {}, {}, {}

-- The acts that take their arguments as a list, by verb: they may be more than a function can have. The
-- arguments of all others are the fields of their records in Python, after the instance.
local LISTED = {}
local JOB_FIELDS = 12  -- how many arguments each job has

-- The acts that bring data, by verb: a server whose memory is full refuses these, and no others.
local GROWS = {}

local AT_CALL = {}

local function at_call(set)
  AT_CALL[#AT_CALL + 1] = set
end

local call, ROOT, META, RUN, CHANNEL, CALLER, AWAY, MAX_TIME, GIVEN_RULES

at_call(function(key, arguments)
  call = redis.call
  META, ROOT = key, string.sub(key, 1, -5)
  RUN, CHANNEL, CALLER, AWAY = arguments[1], arguments[2], arguments[3], tonumber(arguments[4])
  MAX_TIME, GIVEN_RULES = arguments[5], arguments[6]
end)

-- The members of a set. SMEMBERS makes a server take 16 kB of memory: it counts while it answers.
local function members(key)
  return call('SUNION', key)
end

local function int(number)
  return string.format('%.0f', number)
end

-- A table as JSON, in an answer. Its numbers are texts, since cjson writes 14 digits of a number.
local function json(value)
  local function shown(one)
    if type(one) == 'number' then
      return int(one)
    elseif type(one) ~= 'table' then
      return one
    end
    local copy = {}
    for key, part in pairs(one) do
      copy[key] = shown(part)
    end
    return copy
  end
  return cjson.encode(shown(value))
end

-- An optional text among the arguments: '' is none, else it follows a '+'.
local function given(text)
  if text ~= '' then
    return string.sub(text, 2)
  end
end

local function number_of(text)
  if text == 'inf' then
    return huge
  end
  return tonumber(text)
end

-- Parts of a key that users name have their lengths in front, so that no two keys are the same.
local function named(name)
  return #name .. ':' .. name
end

-- The name at the beginning of a text, written by `named`, and what follows it behind a ':'.
local function split(text)
  local length, rest = string.match(text, '^(%d+):(.*)$')
  length = tonumber(length)
  return string.sub(rest, 1, length), string.sub(rest, length + 2)
end

local meta

at_call(function()
  local values = redis.pcall('HMGET', META, 'schema', 'run', 'clock', 'offset', 'seq', 'configured',
    'forget_at', 'follow', 'fires')
  meta = {}
  if values[1] then
    meta = {
      schema = tonumber(values[1]),
      run = values[2],
      clock = tonumber(values[3] or 0),
      offset = tonumber(values[4] or 0),
      seq = tonumber(values[5] or nil),
      configured = values[6],
      forget_at = tonumber(values[7] or nil),
      follow = values[8],
      fires = tonumber(values[9] or nil),
    }
  end
end)

-- The time of the store is its last time, and what has passed on the server since. If the server's
-- clock was set back, or further ahead than the caller's clock has gone on since its last answer, an
-- offset takes the difference.
local now, WAS_SET

at_call(function()
  local time = call('TIME')
  local server = time[1] * SECOND + time[2]
  now, WAS_SET = server + (meta.offset or 0), false
  if meta.clock then
    local most = number_of(MAX_TIME)
    local right = math.max(meta.clock, now > most + AHEAD and most or now)
    WAS_SET, now, meta.offset = right ~= now, right, right - server
  end
end)

-- One sequence for ids, places, ready numbers and fences. On a server with another run_id, which may
-- have an older copy of the data, it goes on at the time in microseconds: no number comes twice. So
-- all numbers have 16 digits, and a sorted set orders equal scores by number. A call reserves numbers
-- before it uses them, so few that they do not outrun that time; those that it does not use are lost.
local AT_ONCE = 64
local LAST, RESERVED  -- the number that was used last, the last that may be used

at_call(function()
  LAST, RESERVED = meta.seq or 0, meta.seq or 0
end)

local function reserve_numbers()
  RESERVED = RESERVED + AT_ONCE
  return RESERVED
end

local function next_number()
  if LAST == RESERVED then
    call('HSET', META, 'seq', reserve_numbers())
  end
  LAST = LAST + 1
  return LAST
end
