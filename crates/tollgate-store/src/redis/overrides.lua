-- Tells some of the overrides.
--
-- KEYS[1]  the overrides, a hash by the key that each is for, with their `%version` and `%restored`
-- KEYS[2]  the same keys, a sorted set by when each override ends
-- ARGV     how many to leave out; how many to tell
-- Returns  the version, the one that was restored, then each key with its override
local first = tonumber(ARGV[1])
local told = {
  redis.call('HGET', KEYS[1], '%version') or '0', redis.call('HGET', KEYS[1], '%restored') or '0'
}
for _, key in ipairs(redis.call('ZRANGE', KEYS[2], first, first + tonumber(ARGV[2]) - 1)) do
  told[#told + 1] = key
  told[#told + 1] = redis.call('HGET', KEYS[1], key) or ''
end
return told
