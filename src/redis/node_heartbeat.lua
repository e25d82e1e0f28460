-- A node says that it lives.
-- KEYS[1] the sorted set of nodes by last heartbeat (ms); ARGV: node, ms that a heartbeat lives
-- Returns whether it counted as living until now, the time (ms), those whose heartbeat is late with commas between
-- them, and all who live.
local LATE = 2500
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local before = redis.call('ZSCORE', KEYS[1], ARGV[1])
local known = before and now - before <= tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. (now - ARGV[2]))
local late = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - LATE)
local answer = { known and 1 or 0, now, table.concat(late, ',') }
for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do answer[#answer + 1] = node end
return answer
