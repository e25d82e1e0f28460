-- Notes a member of an index until `score`, and drops what is older than `oldest`.
-- KEYS[1] a sorted set; ARGV: member, score, oldest score (all ms), ms that the key lives
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
