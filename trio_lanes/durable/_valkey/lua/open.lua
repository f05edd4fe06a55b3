-- Opening a namespace: it is made if it is missing, or migrated, and the lanes, groups and rules that
-- it lacks are written. What is there wins.

local function add_lane(name, limit, worker)
  local there = lanes()[name]
  if not there or there.pause_only or (there.proposed and worker) then
    limit.proposed = not worker or nil
    limit.paused_until = there and there.paused_until or limit.paused_until
    put_lane(name, limit)
  end
end

local function add_groups(list)
  local before, group_of = groups()
  for _, group in ipairs(list) do
    local taken = before[group.name] ~= nil
    for _, member in ipairs(group.members) do
      taken = taken or group_of[member] ~= nil
    end
    if not taken then
      put_group(group.name, group)
    end
  end
end

-- `opening`: JSON {identity, worker, lanes: [{name, limit}], groups: [...]}. The argument after it,
-- whether to make the namespace, has been regarded already.
function WRITES.open(opening)
  local asked = cjson.decode(opening)
  if not meta.schema then
    call('HSET', META, 'identity', asked.identity)
  end
  if meta.schema ~= SCHEMA then
    for schema = meta.schema or SCHEMA, SCHEMA - 1 do
      MIGRATIONS[schema]()
    end
    meta.schema = SCHEMA
    note_change()
    call('HSET', META, 'schema', SCHEMA)
  end
  local before = lanes()
  for _, one in ipairs(asked.lanes) do
    add_lane(one.name, one.limit, asked.worker)
  end
  fair.relist_changed(before, lanes())
  if asked.worker then
    add_groups(asked.groups)
    if not own_rules() then
      put_rules(rules())
    end
  end
  return { 0 }
end
