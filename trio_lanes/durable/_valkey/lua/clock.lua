-- The beginning of a call that writes. Time in which no instance could reach the store does not count
-- for leases (`move_leases`): else the first to return would declare the others dead, which are well.

-- A caller that had no answer yet has no time of its own to compare with. The server's clock was set ahead
-- if an instance has a lease by the last time of the store, and is there, and half of that lease has passed
-- since: it calls in each third of it. If none is there, all have died, and the time may have passed.
local function is_set_ahead()
  local last = ask('ZREVRANGE', ROOT .. 'in', 0, 0, 'WITHSCORES')
  if not last[1] or now - meta.clock <= (tonumber(last[2]) - meta.clock) / 2 then
    return false
  end
  for _, id in ipairs(ask('ZRANGEBYSCORE', ROOT .. 'in', '(' .. int(meta.clock), '+inf')) do
    local there = redis.pcall('PUBSUB', 'NUMSUB', ROOT .. 'to:' .. instance_of(id).channel)
    if not there.err and tonumber(there[2]) > 0 then
      return true
    end
  end
  return false
end

at_call(function()
  if MAX_TIME == 'inf' and meta.clock and now > meta.clock + AHEAD and is_set_ahead() then
    meta.offset, now, WAS_SET = meta.offset + meta.clock - now, meta.clock, true
  end
end)

-- The server has restarted, or the caller had no answer for some time.
local function move_leases()
  local gap = now - (meta.clock or now)
  if gap > 0 then
    for _, instance in ipairs(call('ZRANGE', ROOT .. 'in', 0, -1)) do
      call('ZINCRBY', ROOT .. 'in', gap, instance)
    end
  end
end

-- The server's clock was set: the jobs with a time of the wall clock follow it, some in each call.
local function follow_clock()
  local key, offset = ROOT .. 'at', '(' .. int(meta.offset)
  local ids = ask('ZRANGEBYSCORE', key, '-inf', offset, 'LIMIT', 0, BATCH)
  if #ids == 0 then
    ids = ask('ZRANGEBYSCORE', key, offset, '+inf', 'LIMIT', 0, BATCH)
  end
  if #ids == 0 then
    call('HDEL', META, 'follow')
    return
  end
  find_all(ids)
  for _, id in ipairs(ids) do
    local job = find(id)
    job.due, job.followed = job.run_at + meta.offset, meta.offset
    put(job)
  end
  SOON, CALLER_LOOKS = true, true
end

-- Called before the first act that changes something.
local function begin_writing()
  if (meta.run and meta.run ~= RUN) or AWAY > 0 then
    move_leases()
  end
  if meta.run ~= RUN or not meta.seq then
    LAST = math.max(now, LAST)
    RESERVED, meta.run = LAST, RUN
    call('HSET', META, 'run', RUN)
  end
  call('HSET', META, 'clock', now, 'offset', meta.offset or 0, 'seq', reserve_numbers())
  if WAS_SET then
    call('HSET', META, 'follow', 1)
  end
  if WAS_SET or meta.follow then
    follow_clock()
  end
end
