-- What tickets keep: the answer to the act of each, a refusal too, under b:<ticket>.

local REMEMBERED_FOR = 300000  -- five minutes; homes of sessions, too (see affinity)

local REMEMBERED  -- by ticket: the answer that this call has read or given, packed; false: there is none

at_call(function()
  REMEMBERED = {}
end)

-- Read at once what some tickets keep.
local function read_answers(tickets)
  local keys = {}
  for place, ticket in ipairs(tickets) do
    keys[place] = ROOT .. 'b:' .. ticket
  end
  read_each(keys, function(place, text) REMEMBERED[tickets[place]] = text end)
end

-- The answer to the act of a ticket; nil: it is not known.
local function answer_of(ticket)
  if REMEMBERED[ticket] == nil then
    read_answers({ ticket })
  end
  return REMEMBERED[ticket] and cmsgpack.unpack(REMEMBERED[ticket]) or nil
end

local function keep_answer(ticket, answer)
  REMEMBERED[ticket] = cmsgpack.pack(answer)
  call('SET', ROOT .. 'b:' .. ticket, REMEMBERED[ticket], 'PX', REMEMBERED_FOR)
end
