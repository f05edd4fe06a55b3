-- Holds: what kept the ready jobs of a lane from a start, and since when: a hash, by lane, of packed lists
-- {time, cause, time, cause, ...}, the oldest first. The cause '' is none. A claim notes it of each lane
-- with ready jobs that it has looked at, if it differs from what was noted last.

local KEPT_HOLDS = 20

local function holds_of(lane)
  local packed = call('HGET', ROOT .. 'holds', lane)
  return packed and cmsgpack.unpack(packed) or {}
end

-- `ends`: when it will end by itself; or nil. `is_so`: asked before a change is written; or nil.
local function note_hold(lane, cause, ends, is_so)
  local known, noted = holds_of(lane), {}
  if cause == '' and not known[1] then
    return
  end
  for at = 1, #known, 2 do
    if known[at] < now then
      noted[#noted + 1], noted[#noted + 2] = known[at], known[at + 1]
    end
  end
  if cause ~= (noted[#noted] or '') then
    noted[#noted + 1], noted[#noted + 2] = now, cause
  end
  if ends and ends < huge then
    noted[#noted + 1], noted[#noted + 2] = ends, ''
  end
  local kept = { unpack(noted, math.max(1, #noted - 2 * KEPT_HOLDS + 1)) }
  local packed = cmsgpack.pack(kept)
  if packed == cmsgpack.pack(known) or (is_so and not is_so()) then
    return
  elseif kept[1] then
    call('HSET', ROOT .. 'holds', lane, packed)
  else
    call('HDEL', ROOT .. 'holds', lane)
  end
end

-- Forget the holds of lanes without limits of their own that have no jobs.
local function forget_holds()
  for _, lane in ipairs(call('HKEYS', ROOT .. 'holds')) do
    if not lanes()[lane] and ask('EXISTS', ROOT .. 'w:' .. lane) == 0 then
      call('HDEL', ROOT .. 'holds', lane)
    end
  end
end
