-- The keys of a namespace, its time, and its numbers.
--
-- All keys begin with ROOT, which has the one hash tag of the namespace: '{lanes}:'. So all keys lie
-- in one slot of a cluster, and each call of this script is atomic.
--
-- Numbers are doubles here: integers are exact below 2^53. Times are whole microseconds, which is
-- exact until the year 2255. `..` writes a number with 14 digits only, so ids, fences and times are
-- written by `int` where they become a part of a text.
--
-- ARGV: the server's run_id, the caller's channel, its incarnation, how long it had no answer, the
-- three rules that hold until a worker has set some; then acts: verb, number of arguments, arguments.

local call = redis.call
local huge = math.huge
local META = KEYS[1]
local ROOT = string.sub(META, 1, -5)
local RUN, CHANNEL, CALLER, AWAY = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local SCHEMA = 1
local SECOND = 1000000

-- The acts, by verb: acts that only read, acts that write, acts that are done once for each ticket.
-- ASKED has the verbs of this call.
local READS, WRITES, WITH_TICKET, ASKED = {}, {}, {}, {}
local FIRST = 8
do
  local at = FIRST
  while at <= #ARGV do
    ASKED[ARGV[at]] = true
    at = at + 2 + tonumber(ARGV[at + 1])
  end
end

local function int(number)
  return string.format('%.0f', number)
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
local NAMED = {}

local function named(name)
  if not NAMED[name] then
    NAMED[name] = #name .. ':' .. name
  end
  return NAMED[name]
end

local META_TYPE = call('TYPE', META).ok
local meta = {}
if META_TYPE == 'hash' then
  local values = call('HMGET', META, 'schema', 'run', 'clock', 'offset', 'result_ttl',
    'max_crashes', 'hold', 'beat')
  meta = {
    schema = tonumber(values[1] or nil),
    run = values[2],
    clock = tonumber(values[3] or 0),
    offset = tonumber(values[4] or 0),
    beat = tonumber(values[8] or 0),
  }
  if values[5] then
    meta.rules = {
      result_ttl = number_of(values[5]),
      max_crashes = number_of(values[6]),
      hold = values[7] == '1',
    }
  end
end

local function rules()
  return meta.rules or {
    result_ttl = number_of(ARGV[5]), max_crashes = number_of(ARGV[6]), hold = ARGV[7] == '1',
  }
end

-- The time of the store never runs back: if the server's clock was set back, an offset takes the
-- difference.
local now
do
  local time = call('TIME')
  now = time[1] * SECOND + time[2] + (meta.offset or 0)
  if meta.clock and now < meta.clock then
    meta.offset = meta.offset + meta.clock - now
    now = meta.clock
  end
end

-- One sequence for ids, places, ready numbers and fences. On a server with another run_id, which may
-- have an older copy of the data, it goes on at the time in microseconds: no number comes twice. So
-- all numbers have 16 digits, and a sorted set orders equal scores by number. A call reserves numbers
-- before it uses them, each time twice as many; those that it does not use are lost.
local NUMBER, RESERVED, MORE = 0, 0, 1

local function next_number()
  if NUMBER == RESERVED then
    RESERVED = call('INCRBY', ROOT .. 'seq', MORE)
    NUMBER = RESERVED - MORE
    MORE = 2 * MORE
  end
  NUMBER = NUMBER + 1
  return NUMBER
end
