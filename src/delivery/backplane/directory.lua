-- Who serves whom: per principal the nodes with a subscription of it.
--
-- KEYS     entries of one hash slot: sorted sets of nodes by the end of their lease, in ms of Redis's clock
-- ARGV[1]  the operation; ARGV[2] this node; ARGV[3] ms of a lease
--   join   leases the node a place in every entry    -> the indices of entries that did not have it
--   leave  takes the node out of every entry         -> {}
--   find   asks for other nodes                      -> {node, "index index ...", node, ...}
local operation, node, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local answer = {}
if operation == 'join' then
  for i, key in ipairs(KEYS) do
    local ends = redis.call('ZSCORE', key, node)
    if not ends or tonumber(ends) < now then answer[#answer + 1] = tostring(i) end
    redis.call('ZADD', key, now + lease, node)
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    redis.call('PEXPIRE', key, lease)
  end
elseif operation == 'leave' then
  for _, key in ipairs(KEYS) do redis.call('ZREM', key, node) end
else
  local found = {}
  for i, key in ipairs(KEYS) do
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', key, now, '+inf')) do
      if other ~= node then found[other] = found[other] and found[other] .. ' ' .. i or tostring(i) end
    end
  end
  for other, indices in pairs(found) do
    answer[#answer + 1] = other
    answer[#answer + 1] = indices
  end
end
return answer
