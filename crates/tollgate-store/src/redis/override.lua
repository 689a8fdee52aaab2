-- Puts or removes one override, so that every node hears of it.
--
-- KEYS[1]  the overrides, a hash by the key that each is for; its field `%version` grows with every
--          change, and begins with the moment of the first one
-- KEYS[2]  the same keys, a sorted set by when each override ends, in milliseconds
-- ARGV     the key it is for; what it is, or nothing to remove it; when it ends; how many there may be;
--          how long all of them are kept, in milliseconds
-- Returns  1 if that changed something, 0 if not, -1 if there are too many
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- A few at a time, which is more than come, so that nobody waits while all of them go.
local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
for _, key in ipairs(over) do
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[2], key)
end
local before = redis.call('HGET', KEYS[1], ARGV[1])
local changed = 0
if ARGV[2] == '' then
  changed = redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
elseif not before and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then
  changed = -1
elseif before ~= ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
  changed = 1
end
-- Also if only those went that are over: whoever is reading all of them counts where it is by those
-- that it has read.
if changed == 1 or #over > 0 then
  if redis.call('HINCRBY', KEYS[1], '%version', 1) == 1 then
    redis.call('HSET', KEYS[1], '%version', string.format('%.0f', now * 2 ^ 20))
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return changed
