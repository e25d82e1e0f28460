-- Takes streams that are due for a look. Other nodes get them again only after the lease, in case this node dies meanwhile.
-- KEYS[1] a sorted set of streams by the time (ms) at which they are due; ARGV: ms that the clock runs ahead of Redis's, ms of the
-- lease, maximum
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) + tonumber(ARGV[1])
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])
for _, stream in ipairs(due) do redis.call('ZADD', KEYS[1], now + ARGV[2], stream) end
return due
