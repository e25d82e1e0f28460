-- Exact sliding windows: decides the rules of one or more calls, one call after the other, each all or nothing.
--
-- KEYS     the logs of all rules, call by call: strings of the moments (µs, doubles of eight bytes) of what was admitted,
--          oldest first. No key twice in one call.
-- ARGV[1]  doubles, too. First the µs that the clock runs ahead of Redis's (tests; 0 in production); then for each call the
--          number of its rules, and for each of these its calls, its window (µs) and its cost: 1 charges it, 0 only asks
--
-- Returns doubles as well: the moment of the decisions (µs), and for each call the rule that denies longest (0: admitted),
-- the µs until it admits one again, and for each rule how many calls are left now and the µs until the oldest one leaves its
-- window. A single string goes each way, because a client takes longer for a value than Redis for what it stands for.
--
-- A moment is appended, which is cheap. Only when a log's first moment is two windows old it is written anew, without those
-- that count no more, and so it never holds more than twice what its rule admits. From then on it is kept for three
-- windows: until the last that is appended to it has left its own.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local asked, last = ARGV[1], #ARGV[1]
local clock, ahead, at = call('TIME'), unpack('<d', ARGV[1])
local now = clock[1] * 1000000 + clock[2] + ahead
local stamp = pack('<d', now)
local answer, count = { stamp }, 1
local left, resets, anew, windows, costs = {}, {}, {}, {}, {}
local first = 0

-- No functions in here: calling them would cost as much as what they do.
while at <= last do
  local rules, denier, wait = 0, 0, 0
  rules, at = unpack('<d', asked, at)
  for i = 1, rules do
    local calls, window, cost
    calls, window, cost, at = unpack('<ddd', asked, at)
    local log = call('GET', KEYS[first + i]) or ''
    local size, began = #log, now - window
    -- Where the moments begin that count: all of them lie in (began, now], and they are in order.
    local from, to = 0, size
    while from < to do
      local middle = (from + to) / 2
      middle = middle - middle % 8
      if unpack('<d', log, middle + 1) > began then to = middle else from = middle + 8 end
    end
    local used = (size - from) / 8
    if used >= calls then
      -- More than `calls` are logged only after an operator has lowered the limit.
      local frees = unpack('<d', log, size - 8 * calls + 1) - began
      if frees > wait then denier, wait = i, frees end
    end
    left[i], resets[i] = calls - used, used > 0 and unpack('<d', log, from + 1) - began or window
    anew[i] = (size == 0 or unpack('<d', log) <= began - window) and string.sub(log, from + 1)
    windows[i], costs[i] = window, cost
  end
  count = count + 1
  answer[count] = pack('<dd', denier, wait)
  for i = 1, rules do
    local remaining = left[i]
    if denier == 0 and costs[i] == 1 then
      if anew[i] then
        call('SET', KEYS[first + i], anew[i] .. stamp, 'PX', math.ceil(3 * windows[i] / 1000))
      else
        call('APPEND', KEYS[first + i], stamp)
      end
      remaining = remaining - 1
    end
    count = count + 1
    answer[count] = pack('<dd', remaining > 0 and remaining or 0, resets[i])
  end
  first = first + rules
end
return table.concat(answer)
