-- Shared by the twins of the algorithms.
--
-- Numbers here are doubles. Every result is an integer below 2^53, so nothing is ever rounded. Some
-- products and sums on the way may be larger; those are only compared with, or cut off at,
-- something below 2^53, and there rounding does no harm: it keeps the order of numbers, and 2^53 is
-- a double itself, so that what is 2^53 or more stays so.
--
-- Everything here runs anew with every call, and what costs most is making functions and tables.
-- Hence several results in place of a table, and only those algorithms that are asked for; what is
-- rarely asked of one it makes when it is.
local EXACT_MAX = 2 ^ 53 - 1
local COUNT_MAX = 2 ^ 32 - 1

local max, min, fmod, type = math.max, math.min, math.fmod, type

-- An answer to one charge is a list, in the order of the reply: outcome, limit, remaining,
-- reset_after, next_after, retry_after, delay, then the receipt. These are the places of those
-- fields that are filled in or read by name.
local OUTCOME, REMAINING, RESET_AFTER, NEXT_AFTER, RETRY_AFTER, DELAY = 1, 3, 4, 5, 6, 7
local CHARGED, CHARGED_AT, DEBT_BEFORE = 8, 9, 10
local ALLOWED, DENIED, TOO_COSTLY = 0, 1, 2
local NONE = -1 -- in place of a wait

-- fmod is exact, and so is dividing what has no remainder. Lua's own % is not: it multiplies a
-- quotient that was rounded.
local function div_floor(a, b)
  return (a - fmod(a, b)) / b
end

local function div_ceil(a, b)
  local rest = fmod(a, b)
  if rest == 0 then return a / b end
  return (a - rest) / b + 1
end

-- Twin of Timestamp::plus and Micros::plus.
local function plus(moment, wait)
  return min(moment + wait, EXACT_MAX)
end

-- Twin of Timestamp::until_passed. The parentheses keep it exact: the sum of a moment and a wait
-- may not be.
local function until_passed(now, wait, start)
  return max(wait - (now - start), 0)
end

-- Tests give the time. Then no key may expire, since this server's clock has nothing to do with it.
local NOW = tonumber(ARGV[1])
local IS_VIRTUAL = NOW ~= nil
if not IS_VIRTUAL then
  local time = redis.call('TIME')
  NOW = time[1] * 1000000 + time[2]
end

-- How long a key lives whose limit is whole again after `reset_after`, and so vacant. Rounded up,
-- and a millisecond on top, since keys expire by a clock that the server may have read a little
-- before TIME: a state must never be gone before it is vacant. In digits: some
-- servers would be given a number with an exponent, and `..` keeps 14 digits only.
local function ttl_millis(reset_after)
  return string.format('%.0f', div_ceil(reset_after, 1000) + 1)
end

-- Whether a key is of another type than the command that replied, and so another algorithm's. Any
-- other failure is the caller's to hear of.
local function is_of_another(reply)
  if type(reply) ~= 'table' or not reply.err then return false end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return true
end

-- What a command of a key's own type replied; nothing if the key is of another. That stays until
-- something is charged: whoever only looks leaves it to those whose it is.
local function replied(reply)
  if is_of_another(reply) then return false end
  return reply
end

-- Whether this is a number as our states have them, and not less than `least`. Others may have
-- written there too.
local function is_whole(number, least)
  -- By 1 even Lua's own % is exact.
  return type(number) == 'number' and number >= least and number <= EXACT_MAX and number % 1 == 0
end

-- Which algorithms are asked for. Arguments after the time are MessagePack, several values in one
-- string, which is a fraction of the work of an argument for each; they begin with the number of an
-- algorithm: 1 sliding_window, 2 token_bucket, 3 leaky_bucket, 4 fixed_window, 5 sliding_log,
-- 6 concurrency.
local ASKED = {}
for i = 2, #ARGV do ASKED[string.byte(ARGV[i])] = true end
