-- Lanes, templates of lanes, and groups: hashes L and G, name -> packed table.
--
-- They have the fields of LaneLimit and GroupLimit in Python: `rates` is a text for the clients, and
-- `meters` are the same (see rates); so are `weights` and `pulls` of a fair lane, and `aging` and `ages`,
-- in microseconds. What is absent is false. A name that ends with '*' is a template:
-- each lane that has no limits of its own has those of the longest template that matches it.
-- `pause_only`: L has only the pause of such a lane.
--
-- Lanes of templates come and go. The set lr has the lanes of templates of which jobs run; a lane that
-- has none is taken out when that is seen.

-- The field `configured` of META has another value after each change of lanes, groups or rules, which
-- no other namespace of any database has. While it is the same, calls use what an earlier one has read:
-- so no function changes these tables.

-- What an earlier call has read: {configured, lanes, groups, group_of, rules, whether a lane is fair}
local READ

local function unpacked(key)
  local found, flat = {}, call('HGETALL', key)
  for at = 1, #flat, 2 do
    found[flat[at]] = cmsgpack.unpack(flat[at + 1])
  end
  return found
end

local function configured()
  if READ and READ.configured == meta.configured then
    return READ
  end
  local rules = call('HGET', META, 'rules')
  READ = {
    configured = meta.configured, lanes = unpacked(ROOT .. 'L'), groups = unpacked(ROOT .. 'G'),
    group_of = {}, rules = rules and cmsgpack.unpack(rules), fair = false,
  }
  for _, limit in pairs(READ.lanes) do
    READ.fair = READ.fair or limit.fair
  end
  for name, group in pairs(READ.groups) do
    group.name = name
    for _, member in ipairs(group.members) do
      READ.group_of[member] = group
    end
  end
  return READ
end

-- All lanes by name.
local function lanes()
  return configured().lanes
end

-- All groups by name, and the group of each member.
local function groups()
  return configured().groups, configured().group_of
end

-- The rules that a worker has set; nil: none has.
local function own_rules()
  return configured().rules or nil
end

-- Called before a change is written.
local function note_change()
  restore('+inf')
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
  if not own or own == limit or not own.paused_until then
    return limit
  end
  return {
    concurrency = limit.concurrency, max_waiting = limit.max_waiting, meters = limit.meters,
    fair = limit.fair, weights = limit.weights, pulls = limit.pulls,
    aging = limit.aging, ages = limit.ages,
    paused_until = math.max(own.paused_until, limit.paused_until or 0),
  }
end

local function is_configured(all, name)
  return all[name] and not all[name].pause_only
end

local function is_paused(lane)
  return lane.paused_until and lane.paused_until > now
end

local function unknown_lane(lane)
  local names = {}
  for name in pairs(lanes()) do
    if is_configured(lanes(), name) then
      names[#names + 1] = name
    end
  end
  table.sort(names)
  return { 1, 'lane', lane, unpack(names) }
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
  for lane in pairs(lanes()) do
    found[lane] = true
  end
  for _, lane in ipairs(members(ROOT .. 'lr')) do
    found[lane] = true
  end
  return found
end

local function rules()
  return own_rules() or cjson.decode(GIVEN_RULES)
end

local function put_rules(all)
  note_change()
  call('HSET', META, 'rules', cmsgpack.pack(all))
end
