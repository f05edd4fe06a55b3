-- Texts that are written together, at the end of the call: the records and texts of jobs, and the last
-- steps of instances.

local TEXTS  -- by key: the text to be written; false: the key is to be deleted

at_call(function()
  TEXTS = {}
end)

-- How many words of a list one command has at most: a server keeps the objects of up to 32 words of a
-- command for the next.
local PART = 30

local function part(words, at)
  return unpack(words, at, math.min(at + PART - 1, #words))
end

local function call_in_parts(command, key, words)
  for at = 1, #words, PART do
    call(command, key, part(words, at))
  end
end

local function text_of(key)
  local text = TEXTS[key]
  if text == nil then
    text = call('GET', key)
  end
  return text
end

-- Read many keys, and do `act` with the place of each and its text; false: there is none.
local function read_each(keys, act)
  for at = 1, #keys, PART do
    local texts = call('MGET', part(keys, at))
    for place, text in ipairs(texts) do
      act(at + place - 1, text)
    end
  end
end

local function put_text(key, text)
  TEXTS[key] = text
end

local function delete_text(key)
  TEXTS[key] = false
end

local function write_texts()
  local set, deleted = {}, {}
  for key, text in pairs(TEXTS) do
    if text then
      set[#set + 1] = key
      set[#set + 1] = text
    else
      deleted[#deleted + 1] = key
    end
  end
  for at = 1, #set, PART do
    call('MSET', part(set, at))
  end
  for at = 1, #deleted, PART do
    call('DEL', part(deleted, at))
  end
  TEXTS = {}
end
