-- Shared by the twins of the algorithms.
--
-- Numbers here are doubles. Every result is an integer below 2^53, so nothing is ever rounded. Some
-- products and sums on the way may be larger; those are only compared with, or cut off at,
-- something below 2^53, and there rounding does no harm: it keeps the order of numbers, and 2^53 is
-- a double itself, so that what is 2^53 or more stays so.
--
-- Everything here runs anew with every call, and a function or a table made costs more than one
-- used: hence several results in place of a table, and each algorithm wrapped in a function that
-- only makes what is inside when a limit asks for it.
local EXACT_MAX = 9007199254740991
local COUNT_MAX = 4294967295
local LOG_ENTRIES_MAX = 100000

local max, min, fmod = math.max, math.min, math.fmod

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

-- `..` and tostring keep 14 digits only.
local function number_text(number)
  return string.format('%.0f', number)
end

-- Tests give the time. Then no key may expire, since this server's clock has nothing to do with it.
local NOW = tonumber(ARGV[1])
local IS_VIRTUAL = NOW ~= nil
if not IS_VIRTUAL then
  local time = redis.call('TIME')
  NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- How long a key lives whose limit is whole again after `reset_after`, and so vacant. Rounded up,
-- and a millisecond on top, since keys expire by a clock that the server may have read a little
-- before TIME: a state must never be gone before it is vacant.
local function ttl_millis(reset_after)
  return number_text(div_ceil(reset_after, 1000) + 1)
end

-- Reads a key by a command of its own type. Another type of key is another algorithm's: it goes,
-- and this one starts afresh. Any other failure is the caller's to hear of.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then return redis.call(command, key, ...) end
  redis.call('UNLINK', key)
  return nil
end
