-- Exact sliding windows: decides all rules of one request at once, all or nothing.
--
-- KEYS[i]            the log of rule i: a list of the moments (µs) of what was admitted, oldest first
-- ARGV[1]            µs that the clock runs ahead of Redis's (tests; 0 in production)
-- ARGV[3i-1..3i+1]   calls, window (µs) and cost of rule i: 1 charges it, 0 only asks
--
-- Returns the moment of the decision (µs), the rule that denies longest (0: admitted), the µs until it admits one again,
-- and for each rule how many calls are left now and the µs until the oldest one leaves its window.
-- A log never holds more than its rule admits, so its size is bounded; it expires with its window.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2] + ARGV[1]
local denier, wait, room = 0, 0, {}

for i, key in ipairs(KEYS) do
  local calls, window = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
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

local answer = { now, denier, wait }
for i, key in ipairs(KEYS) do
  local left = room[i][1]
  if denier == 0 and ARGV[3 * i + 1] == '1' then
    redis.call('RPUSH', key, string.format('%.0f', now))
    redis.call('PEXPIRE', key, math.ceil(ARGV[3 * i] / 1000))
    left = left - 1
  end
  answer[#answer + 1] = math.max(left, 0)
  answer[#answer + 1] = room[i][2]
end
return answer
