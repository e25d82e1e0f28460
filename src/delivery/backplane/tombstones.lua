-- A revoked credential stays so for a day, also if Postgres forgets it.
-- KEYS[1] the sorted set of tombstones by time (ms); ARGV[1] ms that one stands; ARGV[2..] tombstones
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now, ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('ZCARD', KEYS[1])
