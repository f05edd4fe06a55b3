-- The history of a job's runs: `runs` of its record, the oldest first, at most KEPT. Each is {attempt,
-- fence, host, pid, begin, end, how, error, due, by what}; of these, the end, how and the error are false
-- while it runs; the last two are there if the job was not due at once.

local KEPT = 10

local function begun(job, info)
  local runs = job.runs or {}
  job.runs = runs
  if #runs == KEPT then
    table.remove(runs, 1)
  end
  runs[#runs + 1] = {
    (job.attempts or 0) + 1, job.fence, info.host, info.pid, now, false, false, false,
    job.why and job.due, job.why,
  }
end

local function ended(job, how, failure)
  local run = job.runs[#job.runs]
  run[6], run[7], run[8] = now, how, failure or false
end

-- A run did not end by a crash, as another instance took it to have ended. Return whether one did.
local function forgiven(job, fence)
  for _, run in ipairs(job.runs or {}) do
    if run[2] == fence and run[7] == 'crashed' then
      run[7] = 'released'
      return true
    end
  end
  return false
end
