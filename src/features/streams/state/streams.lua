-- The streams of one agent: their heads, their newest deltas, a checkpoint and a status each.
--
-- KEYS[1]  a hash. `m:<stream>` is the head of a stream (msgpack), `d:<n>:<stream>` a delta, `c:<stream>` the checkpoint,
--          `s:<stream>` the newest status; `names` lists the streams, oldest first, and `bytes` counts all but the heads
-- ARGV     the operation, the ms that the clock runs ahead of Redis's (tests; 0 in production), the ms that a stream is kept after
--          its last sign, the stream; then
--   load        -> {now}, or {now, life, home, next, sign, ended, waiting}
--   begin       `<life> <generation> <is over>` as loaded or '', life, home, conversation, answered message or '', generation,
--               whether the content stays, maximum of open streams, maximum of streams
--               -> 'ok'; 'changed': it is not as loaded; 'open': too many are open
--   delta       life, text, n, maximum a second, maximum of deltas, maximum of bytes
--   checkpoint  life, text, n, ms between two, maximum of bytes
--   status      life, text, maximum a second, maximum of bytes
--   keepalive   life
--               -> 'ok'; 'unknown'; 'order', the next number; 'rate', ms to wait; 'full'
--   close       life or '', conversation, end, whether the content goes -> 'ok'; 'over'; 'unknown'
--   stop        conversation, answered message or '', end -> the streams that it ends
--   idle        ms of silence, end -> 'gone'; 'wait', until, life, home, is over; 'idle', until, life, home
--   replay      first delta, or '' for the newest checkpoint and what follows
--               -> as load, with the first delta's number, checkpoint, status, deltas...
--
-- A text, a home and an end are sealed by the nodes. A stream counts as gone when it has been kept for long enough. All content of
-- an agent is in one key, so that its budget and its expiry hold for all of it.
local call, key = redis.call, KEYS[1]
local operation, KEPT, name = ARGV[1], tonumber(ARGV[3]), ARGV[4]
local SLACK, RATE_WINDOW = 120000, 1000
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) + tonumber(ARGV[2])
local bytes = tonumber(call('HGET', key, 'bytes') or 0)

local function text(number) return string.format('%.0f', number) end

local function read(stream)
  local packed = call('HGET', key, 'm:' .. stream)
  return packed and cmsgpack.unpack(packed)
end

local function write(stream, head)
  call('HSET', key, 'm:' .. stream, cmsgpack.pack(head), 'bytes', bytes)
  call('PEXPIRE', key, KEPT + SLACK)
end

local function names()
  local packed = call('HGET', key, 'names')
  return packed and cmsgpack.unpack(packed) or {}
end

-- Stores a part, or deletes it.
local function put(stream, head, kind, part)
  local place = kind .. ':' .. stream
  local change = (part and #part or 0) - call('HSTRLEN', key, place)
  if part then call('HSET', key, place, part) else call('HDEL', key, place) end
  head.bytes, bytes = head.bytes + change, bytes + change
end

-- Deletes the deltas before a number.
local function forget(stream, head, before)
  while head.first < before do
    put(stream, head, 'd:' .. head.first, nil)
    head.first = head.first + 1
  end
end

local function clear(stream, head)
  forget(stream, head, head.next)
  put(stream, head, 'c', nil)
  put(stream, head, 's', nil)
end

local function remove(stream, head)
  clear(stream, head)
  call('HDEL', key, 'm:' .. stream)
  local kept = {}
  for _, other in ipairs(names()) do
    if other ~= stream then kept[#kept + 1] = other end
  end
  call('HSET', key, 'names', cmsgpack.pack(kept), 'bytes', bytes)
end

-- The head of a stream that is not gone.
local function known(stream)
  local head = read(stream)
  if head and now - head.sign > KEPT then
    remove(stream, head)
    return nil
  end
  return head
end

-- Makes room for more bytes: first the content of streams that are over goes, then the oldest deltas of this one.
local function fits(head, more, max)
  if bytes + more <= max then return true end
  for _, other in ipairs(names()) do
    local theirs = other ~= name and read(other)
    if theirs and theirs.over and theirs.bytes > 0 then
      clear(other, theirs)
      write(other, theirs)
      if bytes + more <= max then return true end
    end
  end
  local own = head.bytes - call('HSTRLEN', key, 'c:' .. name) - call('HSTRLEN', key, 's:' .. name)
  if bytes + more - own > max then return false end
  while bytes + more > max do forget(name, head, head.first + 1) end
  return true
end

-- The ms until the stream may say more, or nil after charging it.
local function overrun(head, rate)
  local from = 1
  while from < #head.recent and struct.unpack('<d', head.recent, from) + RATE_WINDOW <= now do from = from + 8 end
  local recent = string.sub(head.recent, from)
  if #recent >= 8 * rate then return struct.unpack('<d', recent) + RATE_WINDOW - now end
  head.recent = recent .. struct.pack('<d', now)
end

local function described(head)
  return { text(now), head.life, head.home, text(head.next), text(head.sign), head.over or '', head.waiting and '1' or '' }
end

if operation == 'stop' then
  local conversation, answered, ending = ARGV[5], ARGV[6], ARGV[7]
  local ended = {}
  for _, stream in ipairs(names()) do
    local head = known(stream)
    local concerns = head and not head.over and head.conversation == conversation
    if concerns and (answered == '' or head.answered == '' or head.answered == answered) then
      head.over, head.sign = ending, now
      write(stream, head)
      ended[#ended + 1] = stream
    end
  end
  return ended
end

local head = known(name)

if operation == 'load' then
  if not head then return { text(now) } end
  return described(head)
end

if operation == 'replay' then
  if not head then return { text(now) } end
  local answer, first = described(head), head.first
  local checkpoint = ''
  if ARGV[5] ~= '' then
    first = math.max(first, tonumber(ARGV[5]))
  elseif head.checkpoint then
    checkpoint = call('HGET', key, 'c:' .. name) or ''
    if checkpoint ~= '' then first = math.max(first, head.checkpoint + 1) end
  end
  answer[#answer + 1] = text(first)
  answer[#answer + 1] = checkpoint
  answer[#answer + 1] = call('HGET', key, 's:' .. name) or ''
  local places = {}
  for n = first, head.next - 1 do places[#places + 1] = 'd:' .. n .. ':' .. name end
  if #places > 0 then
    for _, delta in ipairs(call('HMGET', key, unpack(places))) do answer[#answer + 1] = delta or '' end
  end
  return answer
end

if operation == 'begin' then
  local life, home, conversation, answered, generation = ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
  local stays, max_open, max_streams = ARGV[11] == '1', tonumber(ARGV[12]), tonumber(ARGV[13])
  local found = head and table.concat({ head.life, head.generation, head.over and 1 or 0 }, ' ') or ''
  if found ~= ARGV[5] then return { 'changed' } end
  local kept, open, oldest = {}, 0, nil
  for _, other in ipairs(names()) do
    local theirs = other ~= name and known(other)
    if theirs then
      kept[#kept + 1] = other
      if theirs.over then oldest = oldest or #kept else open = open + 1 end
    end
  end
  if open >= max_open then return { 'open' } end
  if #kept >= max_streams and oldest then
    local stream = table.remove(kept, oldest)
    remove(stream, read(stream))
  end
  kept[#kept + 1] = name
  if stays then
    -- The delta that ended the status may be lost.
    put(name, head, 's', nil)
  else
    if head then clear(name, head) end
    head = { life = life, first = 0, next = 0, bytes = 0 }
  end
  head.home, head.conversation, head.answered, head.generation = home, conversation, answered, generation
  head.sign, head.over, head.recent, head.checkpointed = now, nil, '', nil
  -- Until the client has said where its text ends, it may name any number.
  head.renumbers, head.waiting = true, generation > 0
  call('HSET', key, 'names', cmsgpack.pack(kept))
  write(name, head)
  return { 'ok' }
end

if operation == 'idle' then
  local silence, ending = tonumber(ARGV[5]), ARGV[6]
  if not head then return { 'gone' } end
  if head.over then return { 'wait', text(head.sign + KEPT + 1), head.life, head.home, '1' } end
  if now - head.sign < silence then return { 'wait', text(head.sign + silence), head.life, head.home, '' } end
  head.over = ending
  write(name, head)
  return { 'idle', text(head.sign + KEPT + 1), head.life, head.home }
end

if not head or (ARGV[5] ~= '' and head.life ~= ARGV[5]) then return { 'unknown' } end

if operation == 'close' then
  if head.conversation ~= ARGV[6] then return { 'unknown' } end
  if head.over then return { 'over' } end
  head.over, head.sign = ARGV[7], now
  if ARGV[8] == '1' then clear(name, head) end
  write(name, head)
  return { 'ok' }
end

if head.over then return { 'unknown' } end

if operation == 'delta' then
  local delta, n, rate = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
  local max_deltas, max_bytes = tonumber(ARGV[9]), tonumber(ARGV[10])
  local anew = head.waiting and n == 0 and head.next > 0
  if n ~= head.next and not anew then return { 'order', text(head.next) } end
  local wait = overrun(head, rate)
  if wait then return { 'rate', text(wait) } end
  if anew then
    clear(name, head)
    head.first, head.next, head.checkpoint = 0, 0, nil
  end
  put(name, head, 's', nil)
  if head.next - head.first >= max_deltas then forget(name, head, head.next - max_deltas + 1) end
  head.next = n + 1
  if fits(head, #delta, max_bytes) then
    put(name, head, 'd:' .. n, delta)
  else
    -- Other streams of the agent have all of its budget. This one is heard live only.
    forget(name, head, n)
    head.first = head.next
  end
  head.waiting = false
  if head.generation == 0 then head.renumbers = false end
elseif operation == 'checkpoint' then
  local checkpoint, n, pause, max_bytes = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
  if not head.renumbers and (n >= head.next or n < (head.checkpoint or 0)) then return { 'order', text(head.next) } end
  if head.checkpointed and now - head.checkpointed < pause then
    return { 'rate', text(head.checkpointed + pause - now) }
  end
  if not fits(head, #checkpoint - call('HSTRLEN', key, 'c:' .. name), max_bytes) then return { 'full' } end
  put(name, head, 'c', checkpoint)
  if head.renumbers then
    forget(name, head, head.next)
    head.first, head.next = n + 1, n + 1
  end
  head.checkpoint, head.checkpointed, head.renumbers, head.waiting = n, now, false, false
elseif operation == 'status' then
  local status, rate, max_bytes = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
  local wait = overrun(head, rate)
  if wait then return { 'rate', text(wait) } end
  local kept = fits(head, #status - call('HSTRLEN', key, 's:' .. name), max_bytes)
  put(name, head, 's', kept and status or nil)
end
head.sign = now
write(name, head)
return { 'ok' }
