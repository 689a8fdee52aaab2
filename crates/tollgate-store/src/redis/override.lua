-- Puts or removes one override, so that every node hears of it.
--
-- KEYS[1]  the overrides
-- ARGV     the key it is for; what it is, or nothing to remove it; how long all of them are kept, in
--          milliseconds
-- Returns  1 if that changed something
local changed
if ARGV[2] == '' then
  changed = redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  changed = 1
end
if changed == 1 then redis.call('HINCRBY', KEYS[1], '%version', 1) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return changed
