-- Lanes, templates of lanes, and groups: hashes L and G, name -> packed table.
--
-- A lane has c (concurrency), m (max_waiting), paused (until when), proposed, rates (a text for the
-- clients), meters (see rates). A group has members, c, reserve, rates, meters. What is absent is
-- infinite or false. A name that ends with '*' is a template: each lane that has no limits of its own
-- has those of the longest template that matches it. `pause_only`: L has only the pause of such a lane.
--
-- Lanes of templates come and go. The set lr has the lanes of templates of which jobs run; a lane that
-- has none is taken out when that is seen.

-- The field `configured` of META has another value after each change of lanes, groups or rules, which
-- no other namespace of any database has. While it is the same, calls use what an earlier one has read:
-- so no function changes these tables.

local READ = {}  -- {configured, lanes, groups, rules}

local lanes      -- return all lanes by name, and their names in order
local groups     -- return all groups by name, and the group of each member
local own_rules  -- return the rules that a worker has set; false: none has

local function rules_of(ttl, crashes, hold)
  return { result_ttl = number_of(ttl), max_crashes = number_of(crashes), hold = hold == '1' }
end

do  -- what only these three need
  local function configured(name, read)
    if READ.configured ~= meta.configured then
      READ = { configured = meta.configured }
    end
    if not READ[name] then
      READ[name] = { read() }
    end
    return unpack(READ[name])
  end

  local function unpacked(key)
    local found, names, flat = {}, {}, call('HGETALL', key)
    for at = 1, #flat, 2 do
      found[flat[at]] = cmsgpack.unpack(flat[at + 1])
      names[#names + 1] = flat[at]
    end
    table.sort(names)
    return found, names
  end

  local function read_lanes()
    return unpacked(ROOT .. 'L')
  end

  local function read_groups()
    local found, group_of = unpacked(ROOT .. 'G'), {}
    for name, group in pairs(found) do
      group.name = name
      for _, member in ipairs(group.members) do
        group_of[member] = group
      end
    end
    return found, group_of
  end

  local function read_rules()
    local values = call('HMGET', META, 'result_ttl', 'max_crashes', 'hold')
    return values[1] and rules_of(unpack(values)) or false
  end

  function lanes()
    return configured('lanes', read_lanes)
  end

  function groups()
    return configured('groups', read_groups)
  end

  function own_rules()
    return configured('rules', read_rules)
  end
end

-- Called before a change is written.
local function note_change()
  meta.configured = CHANNEL .. ' ' .. int(next_number())
  call('HSET', META, 'configured', meta.configured)
end

local function put_limit(key, name, limit)
  note_change()
  if limit then
    limit.name = nil
    call('HSET', key, name, cmsgpack.pack(limit))
  else
    call('HDEL', key, name)
  end
end

local function put_lane(name, limit)
  put_limit(ROOT .. 'L', name, limit)
end

local function put_group(name, limit)
  put_limit(ROOT .. 'G', name, limit)
end

local function copied(limit)
  local copy = {}
  for key, value in pairs(limit) do
    copy[key] = value
  end
  return copy
end

local function is_template(name)
  return string.byte(name, -1) == 42  -- '*'
end

-- The lane or template of `all` whose limits a lane has; nil: the lane does not exist.
local function label_of(all, name)
  if is_template(name) then
    return nil
  end
  local own, longest = all[name], nil
  if own and not own.pause_only then
    return name
  end
  for label in pairs(all) do
    if is_template(label) and string.sub(name, 1, #label - 1) == string.sub(label, 1, -2) then
      if not longest or #label > #longest then
        longest = label
      end
    end
  end
  return longest
end

-- The limits of a lane, with its pause; nil: the lane does not exist.
local function limit_of(name, all)
  all = all or lanes()
  local label = label_of(all, name)
  if not label then
    return nil
  end
  local limit, own = all[label], all[name]
  if not own or own == limit or not own.paused then
    return limit
  end
  return {
    c = limit.c, m = limit.m, rates = limit.rates, meters = limit.meters,
    paused = math.max(own.paused, limit.paused or 0),
  }
end

local function is_configured(all, name)
  return all[name] and not all[name].pause_only
end

local function is_paused(lane)
  return lane.paused and lane.paused > now
end

local function unknown_lane(lane)
  local all, names = lanes()
  local answer = { 1, 'lane', lane }
  for _, name in ipairs(names) do
    if is_configured(all, name) then
      answer[#answer + 1] = name
    end
  end
  return answer
end

-- {state, lane, name, number} of the jobs that have not ended.
local function all_counts()
  write_counts()
  local counts, flat = {}, call('HGETALL', ROOT .. 'n')
  for at = 1, #flat, 2 do
    local state, rest = string.match(flat[at], '^(%a+):(.*)$')
    local lane, name = split(rest)
    counts[#counts + 1] = { state, lane, name, tonumber(flat[at + 1]) }
  end
  return counts
end

-- The lanes of which a run may hold a slot or want it back.
local function lanes_in_use()
  local found = {}
  for lane in pairs((lanes())) do
    found[lane] = true
  end
  for _, lane in ipairs(members(ROOT .. 'lr')) do
    found[lane] = true
  end
  return found
end

-- A limit as a client gives it: JSON has no infinity.
local function paused_as_given(limit)
  limit.paused = limit.forever and huge or limit.paused
  limit.forever = nil
  return limit
end

local function rules()
  return own_rules() or rules_of(unpack(GIVEN_RULES))
end

local function put_rules(all)
  note_change()
  call('HSET', META, 'result_ttl', all.result_ttl == huge and 'inf' or int(all.result_ttl),
    'max_crashes', all.max_crashes == huge and 'inf' or int(all.max_crashes),
    'hold', all.hold and '1' or '0')
end
