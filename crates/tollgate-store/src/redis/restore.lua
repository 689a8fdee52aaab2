-- Puts overrides again that Redis lost, unless somebody has changed any since that was found out.
--
-- KEYS[1]  the overrides, a hash by the key that each is for, with their `%version`; its field
--          `%restored` is the last version of those that were lost of which all is there again
-- KEYS[2]  the same keys, a sorted set by when each override ends, in milliseconds
-- ARGV     the version at which that was found out; 1 if one that is there is replaced, 0 if it stays;
--          how many there may be; how long all of them are kept, in milliseconds; the version that is
--          restored by this call, or nothing if there are more to come; then of each override the key
--          it is for, what it is, and when it ends
-- Returns  how many of them were put, or -1 if the version is another
local version = redis.call('HGET', KEYS[1], '%version') or '0'
if version ~= ARGV[1] then
  return -1
end
local put = 0
for place = 6, #ARGV, 3 do
  local key, override = ARGV[place], ARGV[place + 1]
  local before = redis.call('HGET', KEYS[1], key)
  local has_room = before or redis.call('ZCARD', KEYS[2]) < tonumber(ARGV[3])
  if before ~= override and has_room and not (before and ARGV[2] == '0') then
    redis.call('HSET', KEYS[1], key, override)
    redis.call('ZADD', KEYS[2], ARGV[place + 2], key)
    put = put + 1
  end
end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], '%restored', ARGV[5])
  -- A beginning of its own, so that no version of what was lost is ever taken for one of these. Versions
  -- have more digits than numbers have here, and all have as many.
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local beginning = string.format('%.0f', now * 2 ^ 20)
  if version < beginning then
    redis.call('HSET', KEYS[1], '%version', beginning)
  else
    redis.call('HINCRBY', KEYS[1], '%version', 1)
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return put
