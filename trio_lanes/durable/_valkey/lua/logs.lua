-- Logs: the list x:<log> has the records in order, each with the incarnation that added it.

local RECORDS_BATCH = 1000
local PART = 20
local MAX_BYTES = 4 * 1024 * 1024

-- Answer: its number; or false: the instance has no lease.
function WITH_TICKET.write_log(instance, log, record)
  if not is_alive(instance) then
    return { 0, false }
  end
  return { 0, call('RPUSH', ROOT .. 'x:' .. log, cmsgpack.pack({ instance, record })) }
end

GROWS.write_log = true

-- Answer: whether there was one.
function WITH_TICKET.drop_log(log)
  return { 0, call('UNLINK', ROOT .. 'x:' .. log) }
end

-- Answer: numbers, incarnations and texts.
function READS.log_page(log, after)
  local key, number, found, size = ROOT .. 'x:' .. log, tonumber(after), { 0 }, 0
  local last = number + RECORDS_BATCH
  while number < last do
    local texts = call('LRANGE', key, number, number + PART - 1)
    for _, text in ipairs(texts) do
      local record = cmsgpack.unpack(text)
      size = size + #record[2]
      if size > MAX_BYTES and #found > 1 then
        return found
      end
      number = number + 1
      found[#found + 1] = number
      found[#found + 1] = record[1]
      found[#found + 1] = record[2]
    end
    if #texts < PART then
      return found
    end
  end
  return found
end
