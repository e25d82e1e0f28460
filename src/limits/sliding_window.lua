-- Exact sliding windows: decides the rules of one or more calls, one call after the other, each all or nothing.
--
-- KEYS     the logs of all rules, call by call: lists of the moments (µs) of what was admitted, oldest first
-- ARGV[1]  µs that the clock runs ahead of Redis's (tests; 0 in production)
-- ARGV     then for each call the number of its rules, and for each of these its calls, its window (µs) and its cost: 1
--          charges it, 0 only asks
--
-- Returns the moment of the decisions (µs), and for each call the rule that denies longest (0: admitted), the µs until it
-- admits one again, and for each rule how many calls are left now and the µs until the oldest one leaves its window.
-- A log never holds more than its rule admits, so its size is bounded; it expires with its window.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2] + ARGV[1]
local answer = { now }

local function decide(first, rules, at)
  local denier, wait, room = 0, 0, {}
  for i = 1, rules do
    local key, calls, window = KEYS[first + i], tonumber(ARGV[at + 3 * i - 2]), tonumber(ARGV[at + 3 * i - 1])
    local oldest = redis.call('LINDEX', key, 0)
    while oldest and tonumber(oldest) <= now - window do
      redis.call('LPOP', key)
      oldest = redis.call('LINDEX', key, 0)
    end
    local used = redis.call('LLEN', key)
    if used >= calls then
      -- More than `calls` are logged only after an operator has lowered the limit.
      local frees = redis.call('LINDEX', key, used - calls) + window - now
      if frees > wait then denier, wait = i, frees end
    end
    room[i] = { calls - used, oldest and oldest + window - now or window }
  end
  answer[#answer + 1] = denier
  answer[#answer + 1] = wait
  for i = 1, rules do
    local key, left = KEYS[first + i], room[i][1]
    if denier == 0 and ARGV[at + 3 * i] == '1' then
      redis.call('RPUSH', key, string.format('%.0f', now))
      redis.call('PEXPIRE', key, math.ceil(ARGV[at + 3 * i - 1] / 1000))
      left = left - 1
    end
    answer[#answer + 1] = math.max(left, 0)
    answer[#answer + 1] = room[i][2]
  end
end

local first, at = 0, 2
while at <= #ARGV do
  local rules = tonumber(ARGV[at])
  decide(first, rules, at)
  first, at = first + rules, at + 1 + 3 * rules
end
return answer
