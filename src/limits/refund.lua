-- Takes one call out of a log again.
--
-- KEYS[1]  the log (see sliding_window.lua)
-- ARGV[1]  the moment of the decision (µs)
-- ARGV[2]  the rule's window (µs)
local log = redis.call('GET', KEYS[1]) or ''
for at = #log - 7, 1, -8 do
  if struct.unpack('<d', log, at) == tonumber(ARGV[1]) then
    local rest = string.sub(log, 1, at - 1) .. string.sub(log, at + 8)
    if rest == '' then
      redis.call('DEL', KEYS[1])
    else
      -- Its first moment may be another one now, so it is kept for three windows from now.
      redis.call('SET', KEYS[1], rest, 'PX', math.ceil(3 * ARGV[2] / 1000))
    end
    return
  end
end
