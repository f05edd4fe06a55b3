-- What other processes hear: that an instance should take a step, and that a job has ended.
--
-- Each client listens on a channel of its own. All of it is a hint: a client whose message is
-- lost finds out by its slow look.
--
-- A wake-up goes to one idle instance that has the handler of a job that may start. If its step
-- leaves jobs, it wakes the next. An instance is idle after a step that left room. Idle instances are
-- in the sets idle:<kind>; a kind is a set of handler names, which the hash kinds keeps.

local LARGEST_OUTCOME = 16384

local LOOK          -- whether a job may start that could not before
local SOON          -- whether something falls due earlier than idle instances know
local CALLER_LOOKS
local NEWS          -- by channel: the texts that this call tells its client

at_call(function()
  LOOK, SOON, CALLER_LOOKS, NEWS = false, false, false, {}
end)

-- What an incarnation has joined with: {host, pid, kind, names, handles, channel,
-- since, affinity, lease_ttl}; `handles`: the set of its names. It stays the same, so
-- a call uses what an earlier one has read.
local INFOS = {}

local function instance_of(id)
  local key = ROOT .. 'i:' .. id
  if not INFOS[key] then
    local text = call('GET', key)
    INFOS[key] = text and cmsgpack.unpack(text) or nil
  end
  return INFOS[key]
end

-- What others are shown of an incarnation whose lease ends at a time.
local function info_of(id, lease_until)
  local info = instance_of(id)
  return {
    id = id, host = info.host, pid = info.pid, since = info.since, names = info.names,
    lease_until = lease_until, running = ask('ZCARD', ROOT .. 'run:' .. id), lease_ttl = info.lease_ttl,
    silent = info.lease_ttl and math.max(0, now - tonumber(lease_until) + info.lease_ttl),
  }
end

local function put_instance(id, info)
  call('SET', ROOT .. 'i:' .. id, cmsgpack.pack(info))
  INFOS[ROOT .. 'i:' .. id] = info
end

local function delete_instance(id)
  call('DEL', ROOT .. 'i:' .. id)
  delete_text(ROOT .. 'st:' .. id)
  INFOS = {}
end

-- The last step of an instance: {number, after, stale, left, room}. `after`: the fences of its claims are
-- above; `stale`: the fences that it refused; `room`: how many more jobs it could have claimed.
local function last_step(instance)
  return cmsgpack.unpack(text_of(ROOT .. 'st:' .. instance))
end

local function put_last_step(instance, step)
  put_text(ROOT .. 'st:' .. instance, cmsgpack.pack(step))
end

-- How many runs of an instance have not lent their slots.
local function run_count(instance)
  local runs = ask('ZCARD', ROOT .. 'run:' .. instance)
  return runs > 0 and runs - ask('ZCARD', ROOT .. 'le:' .. instance) or 0
end

local function publish(channel, text)
  return call('PUBLISH', ROOT .. 'to:' .. channel, text)
end

-- Tell a client that there is news, at the end of the call: the caller in its answer.
local function tell(channel, text)
  local texts = NEWS[channel] or {}
  texts[#texts + 1] = text
  NEWS[channel] = texts
end

-- Return the news of the caller.
local function publish_news()
  for channel, texts in pairs(NEWS) do
    NEWS[channel] = table.concat(texts, '\30')
    if channel ~= CHANNEL then
      publish(channel, NEWS[channel])
    end
  end
  return NEWS[CHANNEL] or ''
end

-- Have the worker of an instance take a step. Return whether it listens.
local function look_at(id)
  if id == CALLER then
    CALLER_LOOKS = true
    return true
  end
  local info = instance_of(id)
  return info and publish(info.channel, 'look') > 0
end

-- The channels of the clients that listen to a job; its record says whether any has `asked` to.
local function listeners(job)
  return job.asked and members(ROOT .. 'q:' .. job.id) or {}
end

local function tell_ended(job, outcome)
  local text = job.id .. ' ' .. job.state
  if #outcome <= LARGEST_OUTCOME then
    text = text .. ' ' .. outcome
  end
  if job.submitter then
    tell(job.submitter, text)
  end
  local waiting = listeners(job)
  for _, channel in ipairs(waiting) do
    if channel ~= job.submitter then
      tell(channel, text)
    end
  end
  if #waiting > 0 then
    call('DEL', ROOT .. 'q:' .. job.id)
  end
end

-- Have the clients that read the events of a job read them again.
local function tell_news(job)
  for _, channel in ipairs(listeners(job)) do
    tell(channel, job.id)
  end
end

-- Have the caller hear of the news of a job, and of its end.
local function listen_to(job)
  local key = ROOT .. 'q:' .. job.id
  if not job.asked then
    job.asked = true
    put(job)
  end
  call('SADD', key, CHANNEL)
  call('PEXPIRE', key, 60000)
end

-- Take one idle instance of a kind out of its set, and wake it. The caller is preferred, unless it is
-- for others.
local function wake_of_kind(kind, for_others)
  local key = ROOT .. 'idle:' .. kind
  if call('SREM', key, CALLER) == 1 and not for_others then
    CALLER_LOOKS = true
    return true
  end
  local id = call('SPOP', key)
  while id do
    if look_at(id) then
      return true
    end
    id = call('SPOP', key)
  end
  return false
end

-- Whether a job of some handlers may start, as far as slots allow it.
local function may_start(names)
  local budget = Budget.new()
  for lane in lanes_after('') do
    local limit = budget:limit(lane)
    if limit and not is_paused(limit) and budget:free(lane) > 0 then
      for entry in pairs(lists_of(lane)) do
        local _, name = parts_of(entry)
        if names[name] then
          return true
        end
      end
    end
  end
  return false
end

-- Runs that want their slots back try again after a step of their instance.
local function wake_slot_requests()
  for lane in pairs(has_slot_requests() and lanes_in_use() or {}) do
    local first = ask('ZRANGE', ROOT .. 'want:' .. lane, 0, 0)[1]
    local job = first and find(first)
    if job and job.instance ~= CALLER then
      look_at(job.instance)
    end
  end
end

local function wake(for_others)
  if not LOOK and not SOON then
    return
  end
  if LOOK then
    wake_slot_requests()
  end
  write_changed()
  if not SOON and not has_lists() then
    return
  end
  local kinds = call('HGETALL', ROOT .. 'kinds')
  for at = 1, #kinds, 2 do
    if call('EXISTS', ROOT .. 'idle:' .. kinds[at]) == 1 then
      local names = {}
      for _, name in ipairs(cmsgpack.unpack(kinds[at + 1])) do
        names[name] = true
      end
      if (SOON or may_start(names)) and wake_of_kind(kinds[at], for_others) then
        return
      end
    end
  end
end
