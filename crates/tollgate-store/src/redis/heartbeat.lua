-- A node says that it is there, and hears what all nodes share.
--
-- KEYS[1]  the nodes, a sorted set by when each was last heard of
-- KEYS[2]  the key that secret values are hashed with: 32 hexadecimal digits, a colon, and the moment
--          that it was made at, in milliseconds; one without a moment is older than any other
-- KEYS[3]  the overrides, a hash whose field `%version` grows with every change
-- KEYS[4]  when each of them ends
-- ARGV     this node's name; the key it offers; after how many milliseconds a node that is not heard of
--          is gone; how long what is shared is kept, in milliseconds; `known` if the key it offers is
--          one that it heard here, `own` if it is its own, without a moment, and `waited` if it is its
--          own and whoever knew another would have told it since it waits
-- Returns  how many nodes there are, the key or nothing if it is not known yet, the version of the
--          overrides, the time in microseconds, and 1 if what was in the place of the key was none
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[3])))
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
-- When a key was made; nothing if it is none.
local function made(key)
  local digits, moment = string.match(key, '^(%x+):?(%d*)$')
  return digits and #digits == 32 and (tonumber(moment) or 0)
end
local offered = ARGV[2]
if ARGV[5] ~= 'known' then
  offered = offered .. ':' .. string.format('%.0f', now)
end
local found = redis.call('GET', KEYS[2])
local is_none = found and not made(found)
local secret = ''
-- Redis that was emptied may hear of a node that is new before it hears of those that know the key: the
-- older key is the one that everything is named by.
if found and not is_none and (ARGV[5] ~= 'known' or made(found) <= made(offered)) then
  secret = found
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
elseif ARGV[5] ~= 'own' or redis.call('ZCARD', KEYS[1]) == 1 then
  secret = offered
  redis.call('SET', KEYS[2], secret, 'PX', ARGV[4])
end
-- Otherwise another node is there and may know the key that was lost: it is its turn.
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[4])
local version = redis.call('HGET', KEYS[3], '%version') or '0'
return {
  redis.call('ZCARD', KEYS[1]), secret, version, tonumber(time[1]) * 1000000 + tonumber(time[2]),
  is_none and 1 or 0
}
