-- Fair lanes: the owners of ready jobs take turns, as the rules over tables have it.
--
-- The fields `party` and `ring` of a ready job are the owner for whom it stands, and the entry of the
-- weights that this owner has; `shelf` is 1 of a job behind another of its owner. The hash
-- sh:<lane>:<priority> has by ring {its owners with ready jobs, what the ring is owed}.

local fair = {}

local function shares_key(lane, priority)
  return ROOT .. 'sh:' .. named(lane) .. ':' .. priority
end

-- The weights of owners in a lane; nil: it is not fair.
function fair.weights_of(lane)
  local limit = configured().fair and limit_of(lane)
  return limit and limit.fair and limit.pulls or nil
end

function fair.heads_of(lane, priority, party)
  local heads = {}
  for at, id in ipairs(ask('ZRANGE', party_list(lane, priority, party), 0, -1)) do
    heads[at] = find(id)
  end
  return heads
end

function fair.first_behind(lane, priority, name, party)
  local id = ask('ZRANGE', party_list(lane, priority, party, name), 0, 0)[1]
  return id and find(id)
end

-- Let a job that becomes ready stand for its owner. Return its shelf. The caller puts the record.
function fair.join(job)
  local weights = fair.weights_of(job.lane)
  if not weights then
    return nil
  end
  local party, ring = fair.standing(job, weights)
  local heads, shelf = fair.heads_of(job.lane, job.priority, party), nil
  for _, head in ipairs(heads) do
    shelf = head.name == job.name and 1 or shelf
  end
  if not heads[1] then
    fair.count(job, ring, 1)
  end
  job.party, job.ring = party, ring
  return shelf
end

-- Take a job that stands for its owner off the lists; the owner's next job comes on.
function fair.leave(job, claimed)
  local party, ring, place, shelf = job.party, job.ring, job.ready, job.shelf
  job.party, job.ring, job.ready, job.shelf = nil, nil, nil, nil
  put(job)
  if shelf then
    return
  end
  local heads = fair.heads_of(job.lane, job.priority, party)
  local behind = fair.first_behind(job.lane, job.priority, job.name, party)
  if not heads[1] and not behind then
    fair.count(job, ring, -1)
  elseif claimed then
    heads[#heads + 1] = behind
    table.sort(heads, function(one, other) return tonumber(one.id) < tonumber(other.id) end)
    for _, head in ipairs(heads) do
      head.ready, head.shelf = next_number(), nil
      put(head)
    end
  elseif behind then
    behind.ready, behind.shelf = place, nil
    put(behind)
  end
end

-- List anew what waits in lanes that are fair now, or not any more, or have other weights.
function fair.relist_changed(before, after)
  local seen = {}
  for _, count in ipairs(all_counts()) do
    local state, lane = count[1], count[2]
    local was, is = limit_of(lane, before), limit_of(lane, after)
    if state == 'waiting' and not seen[lane] and was and is then
      seen[lane] = true
      if was.fair ~= is.fair or was.weights ~= is.weights then
        fair.relist(lane)
      end
    end
  end
end

-- List the ready jobs of a lane anew, by its present limits; the owners keep their turns.
function fair.relist(lane)
  local weights, listed, owners, heads = fair.weights_of(lane), {}, {}, {}
  for _, id in ipairs(ask('ZRANGE', ROOT .. 'w:' .. lane, 0, -1)) do
    local job = find(id)
    if job.ready and job.ready >= 0 and job.shelf ~= true then
      listed[#listed + 1] = job
      call('DEL', shares_key(lane, job.priority))
    end
  end
  table.sort(listed, function(one, other)
    if (one.shelf or 0) ~= (other.shelf or 0) then
      return not one.shelf
    end
    return one.ready < other.ready
  end)
  for _, job in ipairs(listed) do
    job.ready, job.shelf, job.party, job.ring = next_number(), nil, nil, nil
    if weights then
      job.party, job.ring = fair.standing(job, weights)
      local owner = job.priority .. job.party
      local head = #job.name .. job.name .. owner
      if not owners[owner] then
        fair.count(job, job.ring, 1)
      end
      job.shelf = heads[head] and 1 or nil
      owners[owner], heads[head] = true, true
    end
    put(job)
  end
end

-- The entry of the weights that an owner has: its name, or the longest template of it, or ''.
local function weight_class(weights, owner)
  local longest = ''
  for label in pairs(weights) do
    if label == owner then
      return label
    elseif is_template(label) and string.sub(owner, 1, #label - 1) == string.sub(label, 1, -2) then
      longest = #label > #longest and label or longest
    end
  end
  return longest
end

-- For which owner a job stands, and in which ring.
function fair.standing(job, weights)
  local owner = job.owner or job.session
  return owner and '=' .. owner or '-', weight_class(weights, owner or '')
end

function fair.count(job, ring, by)
  if not next(fair.weights_of(job.lane) or {}) then
    return
  end
  local key = shares_key(job.lane, job.priority)
  local known = call('HGET', key, ring)
  local owners, owed = unpack(known and cmsgpack.unpack(known) or { 0, 0 })
  if owners + by > 0 then
    call('HSET', key, ring, cmsgpack.pack({ owners + by, owed }))
  else
    call('HDEL', key, ring)
  end
end

-- ---- which ring is served next: see the module of the core about shares

local function names_and_total(pulls)
  local names, total = {}, 0
  for name in pairs(pulls) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    total = total + pulls[name]
  end
  return names, total
end

local function next_class(owed, pulls)
  local names, total = names_and_total(pulls)
  local ahead, most, best, first = {}, -huge, nil, nil
  for _, name in ipairs(names) do
    ahead[name] = owed[name] * total / pulls[name]
    most = math.max(most, ahead[name])
  end
  for _, name in ipairs(names) do
    local due = total / pulls[name] - ahead[name]
    if ahead[name] + 1 > math.min(0, most) and (not best or due < first) then
      best, first = name, due
    end
  end
  return best
end

-- Choose among rings; return the ring, and what `note_served` needs: {owners, owed, pulls}, by ring.
function fair.choose(lane, priority, weights, rings)
  local owners, owed, pulls = {}, {}, {}
  for ring in pairs(rings) do
    local known = call('HGET', shares_key(lane, priority), ring)
    owners[ring], owed[ring] = unpack(known and cmsgpack.unpack(known) or { 1, 0 })
    pulls[ring] = (weights[ring] or 1) * owners[ring]
  end
  return next_class(owed, pulls), { owners, owed, pulls }
end

function fair.note_served(lane, priority, served, owners, owed, pulls)
  local names, total = names_and_total(pulls)
  for _, name in ipairs(names) do
    local now_owed = owed[name] + pulls[name] / total - (name == served and 1 or 0)
    local key = shares_key(lane, priority)
    call('HSET', key, name, cmsgpack.pack({ owners[name], now_owed }))
  end
end
