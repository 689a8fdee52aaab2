-- A node says that it is there, and hears what all nodes share.
--
-- KEYS[1]  the nodes, a sorted set by when each was last heard of
-- KEYS[2]  the key that secret values are hashed with
-- KEYS[3]  the overrides, a hash whose field `%version` grows with every change
-- KEYS[4]  when each of them ends
-- ARGV     this node's name; the key it offers if there is none yet; after how many milliseconds a
--          node that is not heard of is gone; how long what is shared is kept, in milliseconds;
--          1 if the key it offers is one that it heard here, and 0 if it is its own
-- Returns  how many nodes there are, the key or nothing if it is not known yet, the version of the
--          overrides, and the time in microseconds
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[3])))
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local secret = redis.call('GET', KEYS[2])
if secret then
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
elseif ARGV[5] == '1' or redis.call('ZCARD', KEYS[1]) == 1 then
  secret = ARGV[2]
  redis.call('SET', KEYS[2], secret, 'PX', ARGV[4])
else
  -- Another node is there and may know the key that was lost: it is its turn.
  secret = ''
end
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[4])
local version = redis.call('HGET', KEYS[3], '%version') or '0'
return {
  redis.call('ZCARD', KEYS[1]), secret, version, tonumber(time[1]) * 1000000 + tonumber(time[2])
}
