-- Exact sliding windows: decides the rules of one or more calls, one call after the other, each all or nothing.
--
-- KEYS     the logs of all rules, call by call: strings of the moments (µs, doubles of eight bytes) of what was admitted,
--          oldest first. No key twice in one call.
-- ARGV[1]  µs that the clock runs ahead of Redis's (tests; 0 in production)
-- ARGV     then for each call the number of its rules, and for each of these its calls, its window (µs) and its cost: 1
--          charges it, 0 only asks
--
-- Returns the moment of the decisions (µs), and for each call the rule that denies longest (0: admitted), the µs until it
-- admits one again, and for each rule how many calls are left now and the µs until the oldest one leaves its window.
--
-- A moment is appended, which is cheap. Only when a log's first moment is two windows old it is written anew, without those
-- that count no more, and so it never holds more than twice what its rule admits. From then on it is kept for three
-- windows: until the last that is appended to it has left its own.
local call, unpack, number = redis.call, struct.unpack, tonumber
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2] + ARGV[1]
local stamp = struct.pack('<d', now)
local answer, told = { now }, 1
local left, resets, anew = {}, {}, {}
local first, at, last = 0, 2, #ARGV

-- No functions in here: calling them would cost as much as what they do.
while at <= last do
  local rules, denier, wait = number(ARGV[at]), 0, 0
  for i = 1, rules do
    local calls, window = number(ARGV[at + 3 * i - 2]), number(ARGV[at + 3 * i - 1])
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
  end
  answer[told + 1], answer[told + 2] = denier, wait
  told = told + 2
  for i = 1, rules do
    local room = left[i]
    if denier == 0 and ARGV[at + 3 * i] == '1' then
      if anew[i] then
        call('SET', KEYS[first + i], anew[i] .. stamp, 'PX', math.ceil(3 * ARGV[at + 3 * i - 1] / 1000))
      else
        call('APPEND', KEYS[first + i], stamp)
      end
      room = room - 1
    end
    answer[told + 1], answer[told + 2] = room > 0 and room or 0, resets[i]
    told = told + 2
  end
  first, at = first + rules, at + 1 + 3 * rules
end
return answer
