-- Affinity: the next job of a session is left for a while to the instance that ran the one before. Of a
-- session, ho:<session> has that incarnation, its home, and when the run ended.

local Homes = {}
Homes.__index = Homes

-- Note that a run has ended on an instance, which is the home of its session now.
local function note_home(job)
  if job.session then
    call('SET', ROOT .. 'ho:' .. job.session, int(now) .. ' ' .. job.instance, 'PX', REMEMBERED_FOR)
  end
end

-- `rooms`: by home, how many more jobs are left to it. `due`: when the first job that was left to its
-- home may be claimed all the same; or nil.
function Homes.new(affinity)
  return setmetatable({ affinity = affinity, rooms = {} }, Homes)
end

-- How many more jobs are left to a home, which is woken the first time.
function Homes:room(home)
  if not self.rooms[home] then
    local room = home ~= CALLER and is_alive(home) and last_step(home).room or 0
    self.rooms[home] = room > 0 and look_at(home) and room or 0
  end
  return self.rooms[home]
end

-- Whether a job is left to its home now. It is called once for each job.
function Homes:keep(job)
  local text = job.session and not job.crashed_with and call('GET', ROOT .. 'ho:' .. job.session)
  if not text then
    return false
  end
  local since, home = string.match(text, '^(%d+) (.*)$')
  local ends = math.max(tonumber(since), job.submitted_at, job.due or 0) + self.affinity
  if ends <= now or self:room(home) <= 0 or not instance_of(home).handles[job.name] then
    return false
  end
  self.rooms[home] = self.rooms[home] - 1
  self.due = math.min(self.due or huge, ends)
  return true
end
