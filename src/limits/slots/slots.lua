-- The connections of one principal over all nodes.
--
-- KEYS[1]  a hash: connection -> "<asserted> <granted> <node> <kind> <device>", both times in ms of Redis's clock
-- ARGV     the operation, this node, the maximum of connections, when `living` was true (ms, 0: not known), the living nodes with
--          commas around each; then
--   take   connection, "<kind> <device>"               -> {1, now}; {0, now}: none is free; {2, now}: a webhook call
--                                                        was asked for while a socket is open
--   keep   connection, granted, "<kind> <device>", ... -> {how many there are, those of this node that are too many...}
--
-- A connection counts while its node lives, or if it was asserted since `living` was made (some leeway for masters
-- whose clocks differ). Slots that do not count are deleted on the way. A key lives on while its nodes assert it.
local operation, node, max_connections = ARGV[1], ARGV[2], tonumber(ARGV[3])
local as_of, living = tonumber(ARGV[4]), ARGV[5]
local LEEWAY, UNKNOWN, LIFE = 2000, 5000, 180000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local mine = {}
if operation == 'keep' then
  for i = 6, #ARGV, 3 do mine[ARGV[i]] = { ARGV[i + 1], ARGV[i + 2] } end
end

local all, sockets = {}, false
local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  local connection = stored[i]
  local asserted, granted, holder, kind = stored[i + 1]:match('^(%d+) (%d+) (%S+) (%S+)')
  if not mine[connection] then
    local counts
    if holder == node then
      -- This node does not hold the slot: unless it has just been granted, its end was not heard.
      counts = operation == 'take' or now - asserted < UNKNOWN
    else
      counts = as_of == 0 or tonumber(asserted) > as_of - LEEWAY or living:find(',' .. holder .. ',', 1, true)
    end
    if counts then
      all[#all + 1] = { connection, tonumber(granted) }
      sockets = sockets or kind == 'websocket'
    else
      redis.call('HDEL', KEYS[1], connection)
    end
  end
end

if operation == 'take' then
  if sockets and ARGV[7]:sub(1, 8) == 'webhook ' then return { 2, now } end
  if #all >= max_connections then return { 0, now } end
  redis.call('HSET', KEYS[1], ARGV[6], now .. ' ' .. now .. ' ' .. node .. ' ' .. ARGV[7])
  redis.call('PEXPIRE', KEYS[1], LIFE)
  return { 1, now }
end

for connection, one in pairs(mine) do
  redis.call('HSET', KEYS[1], connection, now .. ' ' .. one[1] .. ' ' .. node .. ' ' .. one[2])
  all[#all + 1] = { connection, tonumber(one[1]) }
end
if #all > 0 then redis.call('PEXPIRE', KEYS[1], LIFE) end

local answer = { #all }
if as_of > 0 and #all > max_connections then
  -- The oldest stay, whoever holds them.
  table.sort(all, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  for i = max_connections + 1, #all do
    if mine[all[i][1]] then
      redis.call('HDEL', KEYS[1], all[i][1])
      answer[#answer + 1] = all[i][1]
    end
  end
end
return answer
