-- One node says that it lives; the count of those that do comes back.
-- KEYS[1] the sorted set of nodes by last beat (ms); ARGV: node, ms that a beat lives
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
return redis.call('ZCARD', KEYS[1])
